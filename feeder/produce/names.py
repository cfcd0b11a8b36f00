"""What the records of a lane are called: by key, shard, and number in the shard."""

from __future__ import annotations

from feeder.plan.chunks import Name


class Names:
    """The names of the records that a lane keeps, by offset.

    Args:
        as_read: Whether records are those that the shards gave, in order: then where a shard begins
            says how all of its records are called.
        offset: Of the first of them.
    """

    def __init__(self, as_read: bool, offset: int) -> None:
        self._as_read = as_read
        self._begins: list[tuple[int, Name]] = []  # of each shard that was opened: at which offset
        self._listed: list[Name] = []
        self._first = offset  # of the oldest listed

    def begin(self, offset: int, name: Name) -> None:
        """A shard was opened: what its next record is called, and at which offset it will be."""
        if self._as_read:
            self._begins.append((offset, name))

    def add(self, names: list[Name]) -> None:
        """The records after the last have these names."""
        self._listed += names

    def of(self, first: int, stop: int) -> list[Name]:
        """The names of the records from an offset up to another."""
        if not self._as_read:
            return self._listed[first - self._first : stop - self._first]
        found: list[Name] = []
        for (begin, (key, shard, number)), (end, _) in zip(
            self._begins, [*self._begins[1:], (stop, None)], strict=True
        ):
            for offset in range(max(first, begin), min(stop, end)):
                found.append((key + offset - begin, shard, number + offset - begin))  # noqa: PERF401
        return found

    def settle(self, offset: int) -> None:
        """Nothing before an offset will be asked for again."""
        if not self._as_read:
            del self._listed[: offset - self._first]
            self._first = max(self._first, offset)
        while len(self._begins) > 1 and self._begins[1][0] <= offset:
            del self._begins[0]
