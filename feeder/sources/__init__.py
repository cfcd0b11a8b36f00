"""Where do records live? In arrays; in any object with ``len()`` and ``[]``; in streams; in files.

A kind of source is imported when it is first asked for: processes start the sooner, workers above
all. What files are read with is imported once a source of them is made. `docs/sources.md` has a
line for each.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feeder.sources.arrayrecord import ArrayRecord
    from feeder.sources.arrays import ArraySource
    from feeder.sources.arrow_ipc import Arrow
    from feeder.sources.callable import FromCallable
    from feeder.sources.hdf5 import HDF5
    from feeder.sources.huggingface import HuggingFace
    from feeder.sources.images import ImageFolder
    from feeder.sources.npy import Npy
    from feeder.sources.parquet import Parquet
    from feeder.sources.pillow import decode_image
    from feeder.sources.protocol import RandomAccess, Source, as_source
    from feeder.sources.stream import Stream, stream_of
    from feeder.sources.tensorstore import TensorStore, write_tensorstore
    from feeder.sources.webdataset import WebDataset

__all__ = [
    "HDF5",
    "ArrayRecord",
    "ArraySource",
    "Arrow",
    "FromCallable",
    "HuggingFace",
    "ImageFolder",
    "Npy",
    "Parquet",
    "RandomAccess",
    "Source",
    "Stream",
    "TensorStore",
    "WebDataset",
    "as_source",
    "decode_image",
    "stream_of",
    "write_tensorstore",
]

_MODULES = {
    "ArrayRecord": "arrayrecord",
    "ArraySource": "arrays",
    "Arrow": "arrow_ipc",
    "FromCallable": "callable",
    "HDF5": "hdf5",
    "HuggingFace": "huggingface",
    "ImageFolder": "images",
    "Npy": "npy",
    "Parquet": "parquet",
    "decode_image": "pillow",
    "RandomAccess": "protocol",
    "Source": "protocol",
    "as_source": "protocol",
    "Stream": "stream",
    "stream_of": "stream",
    "TensorStore": "tensorstore",
    "write_tensorstore": "tensorstore",
    "WebDataset": "webdataset",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
