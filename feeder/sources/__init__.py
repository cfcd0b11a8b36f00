"""Where do records live? In arrays; in TensorStore; in what has ``len()``, ``[]``; in streams."""

from feeder.sources.arrays import ArraySource
from feeder.sources.callable import FromCallable
from feeder.sources.protocol import RandomAccess, Source, as_source
from feeder.sources.stream import Stream, stream_of
from feeder.sources.tensorstore import TensorStore, write_tensorstore

__all__ = [
    "ArraySource",
    "FromCallable",
    "RandomAccess",
    "Source",
    "Stream",
    "TensorStore",
    "as_source",
    "stream_of",
    "write_tensorstore",
]
