"""What the user asked of a callable that gives batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feeder import arguments
from feeder.arrangement import Arrangement
from feeder.feed.called import CalledFeeds
from feeder.place.ends import Job
from feeder.plan.batches import LocalRows
from feeder.plan.state import Identity
from feeder.produce.given import packed
from feeder.produce.inline import Inline
from feeder.produce.maps import own
from feeder.produce.recipe import Recipe
from feeder.produce.session import Producer
from feeder.produce.threads import Threads
from feeder.sources.callable import FromCallable


@dataclass(frozen=True, slots=True)
class Calling:
    """The batches of a callable, as asked for and checked.

    Attributes:
        recipe: Whose source is the callable.
        batch_size: Rows of a global batch.
    """

    recipe: Recipe
    batch_size: int

    last_batch = "drop"
    last_epoch = 0
    schedule = None
    why_no_length = why_no_epoch = "a FromCallable has no end, or none known"

    @classmethod
    def of(cls, recipe: Recipe, *, batch_size: Any, num_epochs: Any, **others: Any) -> Calling:
        """Checks the arguments of a `DataLoader`.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument has a value that cannot work.
        """
        unused = {"sampler": None, "batch_sampler": None, "shuffle": False, "last_batch": "drop"}
        for name, default in unused.items():
            if others[name] != default:
                raise ValueError(
                    f"`{name}` must be left out with a FromCallable, which makes up the batches, "
                    f"got {others[name]!r}"
                )
        if num_epochs not in (1, None):
            raise ValueError(
                "`num_epochs` must be left out with a FromCallable, whose run ends when it returns "
                f"None, got {num_epochs!r}"
            )
        if recipe.on_bad_record == "replace":
            raise ValueError(
                '`on_bad_record` must be "raise" or "skip" with a FromCallable, got "replace": '
                "which other records there are is not known"
            )
        return cls(recipe, arguments.integer("batch_size", batch_size, 1))

    def on(self, local_rows: LocalRows, _job: Job | None) -> Arrangement:
        """The batches, for the rows of this process."""
        source = self.recipe.source
        assert isinstance(source, FromCallable)

        def feeds(producer: Producer) -> CalledFeeds:
            keep: Callable[[Any], Any] = packed
            ahead = True
            if isinstance(producer, Threads):
                keep = own
            elif isinstance(producer, Inline):
                keep, ahead = own if producer.ahead else _itself, producer.ahead
            return CalledFeeds(source, self.batch_size, local_rows, producer, keep, ahead)

        return Arrangement(self._identity, feeds, None)

    @property
    def described(self) -> dict[str, Any]:
        """What else makes up the order: nothing that another process can compare."""
        return {}

    @property
    def _identity(self) -> Identity:
        return Identity(
            num_records=None,
            batch_size=self.batch_size,
            seed=self.recipe.seed,
            shuffle=False,
            sampler={"kind": "callable"},
            last_batch="drop",
        )


def _itself(given: Any) -> Any:
    """What a callable gave, whose batch is built at once."""
    return given
