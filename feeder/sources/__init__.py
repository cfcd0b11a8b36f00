"""Where do records live? In arrays; in any object with ``len()`` and ``[]``; in streams; in files.

What files are read with is imported once a source of them is made. `docs/sources.md` has a line for
each.
"""

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
