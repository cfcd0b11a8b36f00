"""Documents of any length as records of one: `pack`."""

from feeder.packing.pack import pack
from feeder.packing.packed import Packed

__all__ = ["Packed", "pack"]
