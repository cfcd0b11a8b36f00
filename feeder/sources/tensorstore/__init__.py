"""Arrays of any size in chunked storage, through TensorStore: a source of their rows, a writer.

``source`` and ``writer`` are what a user calls. ``specs`` says what names an array, ``rows`` what
its records are; ``reader`` reads a batch of them, ``slabs`` are the chunks that it keeps;
``array_writer`` writes an array, ``destination`` and ``staging`` are the atomic end.
"""

from feeder.sources.tensorstore.source import TensorStore
from feeder.sources.tensorstore.writer import write_tensorstore

__all__ = ["TensorStore", "write_tensorstore"]
