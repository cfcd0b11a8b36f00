"""Where do records live? In arrays; in any object with ``len()`` and ``[]``; in streams."""

from feeder.sources.arrays import ArraySource
from feeder.sources.callable import FromCallable
from feeder.sources.images import ImageFolder
from feeder.sources.pillow import decode_image
from feeder.sources.protocol import RandomAccess, Source, as_source
from feeder.sources.stream import Stream, stream_of
from feeder.sources.webdataset import WebDataset

__all__ = [
    "ArraySource",
    "FromCallable",
    "ImageFolder",
    "RandomAccess",
    "Source",
    "Stream",
    "WebDataset",
    "as_source",
    "decode_image",
    "stream_of",
]
