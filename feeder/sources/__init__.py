"""Where do records live? Arrays and pytrees of them; any object with ``len()`` and ``[]``."""

from feeder.sources.arrays import ArraySource
from feeder.sources.protocol import RandomAccess, as_source

__all__ = ["ArraySource", "RandomAccess", "as_source"]
