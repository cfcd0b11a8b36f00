"""The head of the page: the bottleneck, figures, and whose time went where."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from feeder.cli import text
from feeder.cli.report.model import WAITS, Profile, Step, has_workers
from feeder.cli.report.words import BUILD, STAGE_NAMES, WAIT_COLOURS, wait_names


def summary(profile: Profile, steps: Sequence[Step]) -> str:
    """What to know first."""
    stats = profile.stats
    figures = [
        ("batches/s", text.number(stats.batches_per_s)),
        ("records/s", text.number(stats.records_per_s)),
        ("data", f"{text.size(stats.bytes_per_s)}/s"),
        ("the loop waits", f"{min(1.0, stats.share('wait')):.0%}"),
        ("ready ahead", f"{stats.mean_ready:.1f} batches"),
        ("first batch", text.duration(stats.first_batch_s)),
    ]
    return f"""<section aria-label="Summary">
<p class="verdict">{_code(stats.bottleneck)}</p>
<dl class="figures">
{"".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures)}
</dl>
{_loop_shares(profile, steps)}
{_worker_shares(profile)}
</section>"""


def _loop_shares(profile: Profile, steps: Sequence[Step]) -> str:
    """What the loop did, but for its first step, in which workers start."""
    names = wait_names(has_workers(profile.timeline))
    counted = steps[1:] or steps
    parts = [("step", "your step", sum(each.step_s for each in counted))]
    parts += [
        (WAIT_COLOURS[part], names[part], sum(each.waits[part] for each in counted))
        for part in WAITS
    ]
    return _bar("The loop's time", parts, sum(spent for _, _, spent in parts))


def _worker_shares(profile: Profile) -> str:
    stats = profile.stats
    if not stats.num_workers:
        return ""
    parts = [(stage, STAGE_NAMES[stage], stats.share(stage) / stats.num_workers) for stage in BUILD]
    parts[0] = ("read", "read", max(0.0, parts[0][2] - stats.share("call") / stats.num_workers))
    busy = sum(share for _, _, share in parts)
    whole = max(1.0, busy)
    workers = "The worker's time" if stats.num_workers == 1 else "The workers' time"
    return _bar(workers, [*parts, ("idle", "idle", whole - busy)], whole)


def _bar(title: str, parts: Iterable[tuple[str, str, float]], whole: float) -> str:
    shown = [(colour, name, spent / whole) for colour, name, spent in parts if whole and spent > 0]
    if not shown:
        return ""
    cells, items = [], []
    for colour, name, share in shown:
        kind = 'class="idle"' if colour == "idle" else f'style="--c:var(--{colour})"'
        flex = f"flex:{share:.5f} 0 0"
        style = (
            f'class="idle" style="{flex}"'
            if colour == "idle"
            else (f'style="{flex};--c:var(--{colour})"')
        )
        cells.append(f"<span {style}>{f'{share:.0%}' if share >= 0.05 else ''}</span>")
        items.append(f"<li {kind}>{name} {share:.1%}</li>")
    return f"""<div class="shares"><h3>{title}</h3>
<div class="bar" aria-hidden="true">{"".join(cells)}</div>
<ul class="legend">{"".join(items)}</ul></div>"""


def _code(sentence: str) -> str:
    """The text with what stands in backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(sentence))
