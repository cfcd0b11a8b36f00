"""Where do records live? In arrays; in any object with ``len()`` and ``[]``; in streams."""

from feeder.sources.arrays import ArraySource
from feeder.sources.callable import FromCallable
from feeder.sources.protocol import RandomAccess, Source, as_source
from feeder.sources.stream import Stream, stream_of

__all__ = [
    "ArraySource",
    "FromCallable",
    "RandomAccess",
    "Source",
    "Stream",
    "as_source",
    "stream_of",
]
