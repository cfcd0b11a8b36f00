"""Everything that can go wrong while batches flow.

::

    FeederError
    ├── RecordError            a record could not be built: step, position, index
    │   └── RecordMismatchError    its leaf differs in shape, dtype or structure
    ├── SourceError            a file of a source of ours cannot be read: path, index
    ├── WorkerStartError       the system has no room for the workers' files or processes
    ├── WorkerDiedError        workers died and the chunk could not be finished
    │   └── WorkerTimeoutError     each of them took longer than ``timeout_s``, and was killed
    ├── BadRecordsError        more records were bad than ``max_bad_records``
    ├── MemoryLimitError       the slots would pass ``max_memory_bytes``
    ├── SamplerError           a sampler gave what is no order of records (a ValueError too)
    ├── DocumentError          a document to be packed is not as it should be (a ValueError too)
    ├── StreamError            a stream is not what it says, or a batch from a callable (same)
    ├── ProcessMismatchError   processes of a job make different batches (a ValueError too)
    ├── StateError             a saved state does not fit this loader (a ValueError too)
    └── ClosedError            ``next()`` after ``close()``

Bad arguments are no FeederError: constructors raise ValueError or TypeError before any
process starts. An exception raised by user code arrives as its own type, and so does a
`SourceError` or a `DocumentError`; the `RecordError` that says where it happened is its
``__cause__``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class FeederError(Exception):
    """Base class of every failure at run time."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with the message alone; fields are keyword-only.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[FeederError], args: tuple[Any, ...], fields: dict[str, Any]) -> FeederError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class RecordError(FeederError):
    """A record could not be read, transformed or collated.

    Attributes:
        step: Step of the batch that the record belongs to.
        position: Place of the record in the run's global order; None where the failure
            concerns the whole batch (``read(indices)``, ``collate``, ``batch_transforms``).
        index: Index of the record in the source; in a stream, in its shard; None as above.
        shard: Shard of the record; None where the source is no stream.
        stage: ``"read"``, ``"transform"``, ``"collate"`` or ``"batch_transform"``; ``"start"``
            where a worker could not load the source and the transforms.
        worker_traceback: Traceback of the exception as text, where it was raised.
    """

    def __init__(
        self,
        message: str,
        *,
        step: int,
        stage: str,
        position: int | None = None,
        index: int | None = None,
        shard: int | None = None,
        worker_traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.step = step
        self.stage = stage
        self.position = position
        self.index = index
        self.shard = shard
        self.worker_traceback = worker_traceback

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n\n{self.worker_traceback.rstrip()}" if self.worker_traceback else text


class RecordMismatchError(RecordError):
    """A record's leaf differs in shape or dtype, or its structure differs, from its batch.

    Attributes:
        leaf: The leaf, as an expression on the record: ``record['image']``.
        expected: Shape, dtype or structure of the batch's first record.
        got: The same of this record.
    """

    def __init__(
        self, message: str, *, leaf: str, expected: object, got: object, **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.leaf = leaf
        self.expected = expected
        self.got = got


class SourceError(FeederError):
    """A record of a file, or other storage, cannot be read.

    Attributes:
        path: The file.
        index: Index of the record in the source that reads this file; where several were read at
            once, the first of those that cannot be read.
    """

    def __init__(self, message: str, *, path: str, index: int) -> None:
        super().__init__(message)
        self.path = path
        self.index = index


class WorkerStartError(FeederError):
    """Workers could not be started: too many open files, or processes."""


class WorkerDiedError(FeederError):
    """Workers died, and starting others again could not help.

    Attributes:
        step: Step whose chunk could not be finished; None where workers died while starting.
        indices: Record indices of that chunk; none where the source is a stream.
        exit_codes: Exit code of each death, oldest first; -N for signal N, as in `subprocess`.
    """

    def __init__(
        self,
        message: str,
        *,
        step: int | None,
        indices: Sequence[int] = (),
        exit_codes: Sequence[int] = (),
    ) -> None:
        super().__init__(message)
        self.step = step
        self.indices = list(indices)
        self.exit_codes = list(exit_codes)


class WorkerTimeoutError(WorkerDiedError):
    """Building a chunk took longer than ``timeout_s``, in every worker that tried.

    Attributes:
        timeout_s: The limit, in seconds.
    """

    def __init__(self, message: str, *, timeout_s: float, **where: Any) -> None:
        super().__init__(message, **where)
        self.timeout_s = timeout_s


class BadRecordsError(FeederError):
    """More records were left out or replaced than ``max_bad_records`` allows.

    Attributes:
        step: Step of the batch that would pass the limit.
        indices: Source indices of the bad records of that batch.
        limit: ``max_bad_records``.
    """

    def __init__(self, message: str, *, step: int, indices: Sequence[int], limit: int) -> None:
        super().__init__(message)
        self.step = step
        self.indices = list(indices)
        self.limit = limit


class MemoryLimitError(FeederError):
    """One more slot would pass ``max_memory_bytes``.

    Attributes:
        needed_bytes: Size of the slot that was asked for.
        held_bytes: Size of the slots in use.
        limit_bytes: ``max_memory_bytes``.
    """

    def __init__(
        self, message: str, *, needed_bytes: int, held_bytes: int, limit_bytes: int
    ) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.held_bytes = held_bytes
        self.limit_bytes = limit_bytes


class SamplerError(FeederError, ValueError):
    """A ``sampler`` or ``batch_sampler`` gave what cannot be an order of records.

    What its own code raises arrives as it is.

    Attributes:
        step: Step of the batch; None where it is not known.
        position: Position of the record; None with a ``batch_sampler``.
    """

    def __init__(
        self, message: str, *, step: int | None = None, position: int | None = None
    ) -> None:
        super().__init__(message)
        self.step = step
        self.position = position


class StreamError(FeederError, ValueError):
    """A stream holds other records than it says, or none; or a callable gave no batch.

    What its own code raises arrives as it is.

    Attributes:
        epoch: Epoch in which that was found; None with a `FromCallable`.
        step: Step of the batch; None where it concerns the epoch.
    """

    def __init__(self, message: str, *, epoch: int | None = None, step: int | None = None) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.step = step


class DocumentError(FeederError, ValueError):
    """A document that `feeder.pack` reads is no sequence of tokens, or not the one announced.

    Attributes:
        document: Its index in the source, or its number in its shard.
        shard: Its shard; None where the source is no stream.
    """

    def __init__(self, message: str, *, document: int, shard: int | None = None) -> None:
        super().__init__(message)
        self.document = document
        self.shard = shard


class StateError(FeederError, ValueError):
    """A saved state is damaged, or belongs to another sequence of batches.

    Attributes:
        mismatches: ``{field: (saved, present)}``; empty where the state is damaged.
    """

    def __init__(
        self, message: str, *, mismatches: dict[str, tuple[object, object]] | None = None
    ) -> None:
        super().__init__(message)
        self.mismatches = mismatches or {}


class ProcessMismatchError(FeederError, ValueError):
    """The processes of a job do not make the same batches: the same error on every one of them.

    Attributes:
        differences: ``{field: {process: value}}``: what differs, for the first process and for
            those that differ from it.
        failed: ``{process: message}``: those that could not make their loader, or build the batch.
        missing: Those that did not come to it in time.
        step: Step of the batch, where batches were compared; None while a loader was made.
    """

    def __init__(
        self,
        message: str,
        *,
        differences: dict[str, dict[int, Any]] | None = None,
        failed: dict[int, str] | None = None,
        missing: Sequence[int] = (),
        step: int | None = None,
    ) -> None:
        super().__init__(message)
        self.differences = differences or {}
        self.failed = failed or {}
        self.missing = list(missing)
        self.step = step


class ClosedError(FeederError):
    """The loader or iterator was closed."""

    def __init__(self, message: str = "the loader was closed; make a new one") -> None:
        super().__init__(message)
