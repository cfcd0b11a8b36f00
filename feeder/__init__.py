"""Keeps JAX accelerators fed: deterministic batches from worker processes, placed on devices.

The way of a batch, room by room::

    plan      which records make up batch k?            pure
    produce   who builds it, and where?                 worker processes, slots
    collect   in which order do batches come out?       pure
    feed      what is asked for, and what has come?     one kind for each kind of source
    place     how does it reach its devices?            the only room that imports jax
    monitor   where does the time go?

``sources`` says where records live, ``packing`` makes them of documents; ``loader`` checks the
arguments (with ``arguments``, ``topology``, ``production``, ``sample``, and, for the order of
records, ``ordering``, ``streaming`` or ``calling``) and owns the workers; ``stages`` is what it
wires; ``iterator`` moves batches through the rooms; ``filtering`` asks a predicate with a loader;
``errors`` is all that can go wrong. ``feeder.testing`` is for your own tests, ``cli`` the command
line.
"""

from feeder.errors import (
    BadRecordsError,
    ClosedError,
    DocumentError,
    FeederError,
    MemoryLimitError,
    ProcessMismatchError,
    RecordError,
    RecordMismatchError,
    SamplerError,
    SourceError,
    StateError,
    StreamError,
    WorkerDiedError,
    WorkerStartError,
    WorkerTimeoutError,
)
from feeder.filtering import filtered
from feeder.iterator import BatchIterator
from feeder.loader import DataLoader
from feeder.monitor import Stats, Timeline, progress
from feeder.packing.pack import pack
from feeder.packing.packed import Packed
from feeder.place.shardings import batch_sharding
from feeder.plan.blocks import BlockShuffle
from feeder.plan.samplers import InfiniteSampler, WeightedSampler
from feeder.plan.windows import WindowShuffle
from feeder.produce.bad import BadRecord
from feeder.produce.info import WorkerInfo, get_worker_info
from feeder.produce.transforms import Filter, FlatMap, RandomMap
from feeder.sources.callable import FromCallable
from feeder.sources.concatenation import concat
from feeder.sources.mixing import mix
from feeder.sources.repeating import repeat
from feeder.sources.stream import Stream, stream_of
from feeder.sources.subsetting import subset
from feeder.sources.tokens import TokenWindows
from feeder.sources.zipping import zip as zip  # noqa: A004 - not in __all__, for `import *`
from feeder.spec import ArraySpec
from feeder.version import VERSION

__all__ = [
    "ArraySpec",
    "BadRecord",
    "BadRecordsError",
    "BatchIterator",
    "BlockShuffle",
    "ClosedError",
    "DataLoader",
    "DocumentError",
    "FeederError",
    "Filter",
    "FlatMap",
    "FromCallable",
    "InfiniteSampler",
    "MemoryLimitError",
    "Packed",
    "ProcessMismatchError",
    "RandomMap",
    "RecordError",
    "RecordMismatchError",
    "SamplerError",
    "SourceError",
    "StateError",
    "Stats",
    "Stream",
    "StreamError",
    "Timeline",
    "TokenWindows",
    "WeightedSampler",
    "WindowShuffle",
    "WorkerDiedError",
    "WorkerInfo",
    "WorkerStartError",
    "WorkerTimeoutError",
    "batch_sharding",
    "concat",
    "filtered",
    "get_worker_info",
    "mix",
    "pack",
    "progress",
    "repeat",
    "stream_of",
    "subset",
]
__version__ = VERSION
