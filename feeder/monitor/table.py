"""A `Stats` as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feeder.monitor.stats import Stats

_NAMES = {
    "read": "read",
    "transform": "transform",
    "collate": "collate",
    "batch_transform": "batch transform",
    "call": "  of read: callable",
    "wait": "wait of the loop",
    "wait_worker": "  for workers",
    "place": "  placing",
}
"""Stages in the order of the table, with the parts of a stage below it."""

_ALWAYS = ("read", "wait")


def table_of(stats: Stats) -> str:
    """The table, and the sentence that names the bottleneck below it."""
    head = f"{stats.batches:,} batches, {stats.records:,} records in {stats.elapsed_s:.3g} s"
    lines = [
        f"{head}; the loop waited {stats.wait_share:.1%} of the time, "
        f"{stats.first_batch_s:.3g} s of it for the first batch"
    ]
    if stats.recent_batches:
        lines += [
            f"of late: {number(stats.batches_per_s)} batches/s, "
            f"{number(stats.records_per_s)} records/s, {size(stats.bytes_per_s)}/s; "
            f"{stats.mean_ready:.1f} batches ready on average",
            "",
            *_stages(stats),
            "",
        ]
    lines.append(_workers(stats))
    if stats.memory:
        shown = [f"{each.process} {size(each.own_bytes)}" for each in stats.memory[:9]]
        more = len(stats.memory) - len(shown)
        lines.append("memory of their own: " + ", ".join(shown) + (f", {more} more" * (more > 0)))
    if stats.slots_bytes:
        shared, most = size(stats.slots_bytes), size(stats.max_memory_bytes)
        lines.append(f"slots: {shared} of at most {most}")
    return "\n".join([*lines, stats.bottleneck])


def line_of(stats: Stats) -> str:
    """The same in a line, for a log."""
    return (
        f"{stats.batches:,} batches: {number(stats.batches_per_s)} batches/s, "
        f"{number(stats.records_per_s)} records/s, {size(stats.bytes_per_s)}/s, "
        f"{min(1.0, stats.share('wait')):.0%} of the time waiting for data. {stats.bottleneck}"
    )


def size(num_bytes: float) -> str:
    """Bytes in a unit that people read."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.3g} {unit}" if num_bytes < 1000 else f"{num_bytes:,.0f} {unit}"


def _stages(stats: Stats) -> list[str]:
    rows: list[Sequence[str]] = [("", "total s", "of the time", "mean", "p50", "p90", "p99", "max")]
    for stage, name in _NAMES.items():
        each = stats.stages[stage]
        if stage == "place" and not stats.placed:
            name = "  unpacking"
        if each.total_s or stage in _ALWAYS:
            figures = (each.mean_s, each.p50_s, each.p90_s, each.p99_s, each.max_s)
            ms = (f"{figure * 1e3:,.2f}" for figure in figures)
            rows.append((name, f"{each.total_s:,.2f}", f"{stats.share(stage):.0%}", *ms))
    shown = [_row(row) for row in rows]
    return [f"{shown[0]}   ms for a batch, without the first", *shown[1:]]


def _row(row: Sequence[str]) -> str:
    name, total, share, *figures = row
    return f"{name:19}{total:>10}{share:>13}" + "".join(f"{figure:>10}" for figure in figures)


def _workers(stats: Stats) -> str:
    if stats.worker_type == "here":
        text = "no workers: batches are built in this process"
    else:
        kind = {"process": "worker process", "thread": "worker thread"}[stats.worker_type]
        kind += ("es" if kind.endswith("s") else "s") * (stats.num_workers > 1)
        text = f"{stats.num_workers} {kind}, building {stats.busy:.0%} of the time"
    text += f"; {stats.num_cpus} processors"
    if stats.worker_cpus is not None:
        who = "this process keeps" if stats.worker_type == "thread" else "workers keep"
        text += f", of which {who} {stats.worker_cpus:.1f} busy"
    if stats.restarts:
        text += f"; {stats.restarts} restarts"
    if stats.num_bad_records:
        text += f"; {stats.num_bad_records} bad records"
    return text


def number(value: float) -> str:
    """A rate with as many digits as it takes."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
