"""Tables and units, as the commands print them."""

from __future__ import annotations

from collections.abc import Sequence

from feeder.monitor.table import size

__all__ = ["count", "duration", "number", "pairs", "size", "table"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Columns as wide as they need be.

    Args:
        head: Title of each column.
        rows: Cells of each row.
        right: Numbers of the columns whose cells stand at the right.
    """
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]

    def padded(line: list[str]) -> str:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        return ("  " + "  ".join(cells)).rstrip()

    return "\n".join(map(padded, lines))


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Names with what belongs to them."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name.ljust(width)}  {value}".rstrip() for name, value in rows)


def count(amount: int, one: str, more: str = "") -> str:
    """So many of something: ``1 step``, ``2,000 steps``; ``more`` is the plural, if not with s."""
    return f"{amount:,} {one if amount == 1 else more or one + 's'}"


def number(value: float) -> str:
    """Three digits at least, all before the point: 12,345 or 12.3 or 0.0123."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for unit, factor in (("ns", 1e9), ("µs", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
