"""How many tokens of each document are packed, and by which plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.packing.documents import Form, Name
from feeder.plan.packing import BestFitPlan, PackingPlan, SplitPlan

Strategy: TypeAlias = Literal["best_fit", "split"]
TooLong: TypeAlias = Literal["split", "truncate", "drop", "raise"]

STRATEGIES: tuple[Strategy, ...] = ("best_fit", "split")
TOO_LONG: tuple[TooLong, ...] = ("split", "truncate", "drop", "raise")


@dataclass(frozen=True)
class Sizing:
    """The arguments of `feeder.pack` that say what records hold, checked.

    Attributes:
        length: Tokens of a record.
        strategy: How documents are packed.
        window: Documents that are packed together, with ``"best_fit"``.
        too_long: What becomes of a document longer than a record, with ``"best_fit"``.
        separator: What is put after each document; None: nothing.
        pad: What stands where a record holds no document.
        keys: Leaves of documents that are packed; None: all.
    """

    length: int
    strategy: Strategy
    window: int
    too_long: TooLong
    separator: int | None
    pad: int
    keys: tuple[str, ...] | None

    def sizes(self, lengths: NDArray[Any], name: Callable[[int], Name] = Name) -> NDArray[Any]:
        """Tokens that are packed of each document: an array, perhaps the same.

        Args:
            lengths: Tokens that each has.
            name: Which document stands at a place of them.

        Raises:
            DocumentError: One is too long, with ``too_long="raise"``.
        """
        sizes = lengths
        if self.separator is not None:
            wide = np.min_scalar_type(int(sizes.max(initial=0)) + 1)
            sizes = sizes.astype(wide) + (sizes > 0)
        if self.strategy == "split" or self.too_long == "split":
            return sizes
        long = sizes > self.length
        if not long.any():
            return sizes
        if self.too_long == "raise":
            place = int(np.argmax(long))
            named = name(place)
            raise named.error(
                f"{named} must have at most `length` = {self.length} tokens, got {sizes[place]}; "
                'set `too_long` to "split", "truncate" or "drop"'
            )
        return np.where(long, self.length if self.too_long == "truncate" else 0, sizes)

    @property
    def described(self) -> dict[str, Any]:
        """The arguments, JSON-able."""
        return {**vars(self), "keys": None if self.keys is None else list(self.keys)}

    def plan(self, sizes: NDArray[Any]) -> PackingPlan:
        """The plan of documents of these sizes."""
        if self.strategy == "split":
            return SplitPlan(sizes, self.length)
        return BestFitPlan(sizes, self.length, self.window)

    def form(self, first: dict[str, NDArray[Any]], name: Name) -> Form:
        """What all documents must be like."""
        return Form(first, name, self.keys, self.length, self.pad, self.separator)
