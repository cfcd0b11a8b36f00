"""Writes the page: its tables and figures, and what its script draws."""

from __future__ import annotations

import html
import json
import re
from importlib import resources
from collections.abc import Iterable, Sequence

from feeder.cli import text
from feeder.cli.report.model import WAITS, Profile, Step, drawn, steps_of
from feeder.version import VERSION

_BUILD = ("read", "transform", "collate", "batch_transform")
_NAMES = {
    "read": "read",
    "transform": "transform",
    "collate": "collate",
    "batch_transform": "batch transform",
    "wait": "wait of the loop",
    "wait_worker": "for workers",
    "place": "placing",
    "call": "calling the callable",
    "step": "your step",
}
_PARTS = ("wait_worker", "place", "call")
_WAIT_NAMES = {"worker": "waiting for workers", "build": "building here", "place": "placing"}
_WAIT_COLOURS = {"worker": "wait", "build": "read", "place": "place"}


def page(profile: Profile) -> str:
    """The HTML, complete: it needs nothing else, and no network."""
    steps = steps_of(profile.timeline)
    title = f"{profile.name} – feeder profile"
    data = json.dumps(drawn(profile), separators=(",", ":")).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>
{_file("style.css")}</style>
</head>
<body>
<main>
<header>
<h1>{html.escape(profile.name)}</h1>
<p class="notes">{"".join(f"<span>{html.escape(note)}</span>" for note in profile.notes)}</p>
</header>
{_verdict(profile, steps)}
{_timeline(profile)}
{_waits(steps)}
{_memory(profile)}
{_stages(profile)}
{_steps(steps)}
<footer>Made by feeder {VERSION}. Stages of workers run side by side: their times may add up to
more than the loop's.</footer>
</main>
<div id="tip" role="status" hidden></div>
<script type="application/json" id="data">{data}</script>
<script type="module">
{_file("draw.js")}</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return resources.files("feeder.cli.report").joinpath(name).read_text(encoding="utf-8")


def _verdict(profile: Profile, steps: Sequence[Step]) -> str:
    stats = profile.stats
    figures = [
        ("batches/s", text.number(stats.batches_per_s)),
        ("records/s", text.number(stats.records_per_s)),
        ("data", f"{text.size(stats.bytes_per_s)}/s"),
        ("the loop waits", f"{min(1.0, stats.share('wait')):.0%}"),
        ("ready ahead", f"{text.number(stats.mean_ready)} batches"),
        ("first batch", text.duration(stats.first_batch_s)),
    ]
    return f"""<section aria-label="Summary">
<p class="verdict">{_code(stats.bottleneck)}</p>
<dl class="figures">
{"".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures)}
</dl>
{_loop_shares(steps)}
{_worker_shares(profile)}
</section>"""


def _loop_shares(steps: Sequence[Step]) -> str:
    """What the loop did, but for its first step, in which workers start."""
    counted = steps[1:] or steps
    parts = [("step", "your step", sum(each.step_s for each in counted))]
    parts += [
        (_WAIT_COLOURS[part], _WAIT_NAMES[part], sum(each.waits[part] for each in counted))
        for part in WAITS
    ]
    return _bar("The loop's time", parts, sum(spent for _, _, spent in parts))


def _worker_shares(profile: Profile) -> str:
    stats = profile.stats
    if not stats.num_workers:
        return ""
    parts = [(stage, _NAMES[stage], stats.share(stage) / stats.num_workers) for stage in _BUILD]
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


def _timeline(profile: Profile) -> str:
    timeline = profile.timeline
    steps = timeline.steps
    if not steps:
        return "<section><h2>Timeline</h2><p>No step was delivered.</p></section>"
    stages = [stage for stage in (*_BUILD, "place", "wait", "step", "ready")]
    present = {span.stage for span in timeline.spans}
    names = {"wait": "wait of your loop", "ready": "batches that lie ready"}
    legend = "".join(
        f'<li style="--c:var(--{stage})">{names.get(stage) or _NAMES[stage]}</li>'
        for stage in stages
        if stage in present
    )
    shown = "1 step" if len(steps) == 1 else f"{len(steps):,} steps"
    restarts = sum(restart.count for restart in timeline.restarts)
    died = f" {restarts} worker deaths are marked." if restarts else ""
    return f"""<section aria-labelledby="timeline-title">
<div class="head"><h2 id="timeline-title">Timeline</h2>
<div class="buttons" role="group" aria-label="Timeline">
<button id="earlier" aria-label="Earlier">←</button><button id="later" aria-label="Later">→</button>
<button id="out" aria-label="Zoom out">−</button><button id="in" aria-label="Zoom in">+</button>
<button id="all">All</button></div></div>
<p class="hint">Who did what for which step, over {shown}.{died} Point at a span to see its batch on
all lanes; drag to move, Ctrl and wheel, or + and −, to zoom.</p>
<svg id="timeline" role="img" tabindex="0" aria-label="Timeline of {shown} in the lanes
 {html.escape(", ".join(timeline.lanes))}; the table of steps at the end of the page has the same in
 figures."></svg>
<svg id="overview" height="22" aria-hidden="true"></svg>
<ul class="legend">{legend}</ul>
<noscript><p>The pictures need JavaScript; the tables below have their figures.</p></noscript>
</section>"""


def _waits(steps: Sequence[Step]) -> str:
    if not steps:
        return ""
    longest = max(steps, key=lambda each: each.wait_s)
    kinds = [part for part in WAITS if any(each.waits[part] for each in steps)]
    legend = "".join(
        f'<li style="--c:var(--{_WAIT_COLOURS[part]})">{_WAIT_NAMES[part]}</li>' for part in kinds
    )
    return f"""<section aria-labelledby="waits-title">
<h2 id="waits-title">Where each step waited</h2>
<p class="hint">The longest wait was {text.duration(longest.wait_s)}, for step {longest.step:,}.</p>
<svg id="waits" role="img" aria-label="Stacked columns: what each of {len(steps):,} steps waited
 for, and its own time; the table of steps at the end of the page has the figures."></svg>
<ul class="legend">{legend}<li class="quiet" style="--c:var(--step)">your
 step</li></ul>
</section>"""


def _memory(profile: Profile) -> str:
    samples = profile.timeline.memory
    if not samples:
        return ""
    last: dict[str, int] = {sample.process: sample.num_bytes for sample in samples}
    workers = {name: held for name, held in last.items() if name.startswith("worker")}
    items = []
    if "parent" in last:
        items.append(("step", f"this process: {text.size(last['parent'])}"))
    if workers:
        least, most = text.size(min(workers.values())), text.size(max(workers.values()))
        each = most if least == most else f"{least} to {most}"
        one = "1 worker" if len(workers) == 1 else f"each of {len(workers)} workers"
        items.append(("read", f"{one}: {each}"))
    if "slots" in last:
        items.append(("place", f"slots, shared by all: {text.size(last['slots'])}"))
    legend = "".join(f'<li style="--c:var(--{c})">{words}</li>' for c, words in items)
    said = "; ".join(words for _, words in items)
    return f"""<section aria-labelledby="memory-title">
<h2 id="memory-title">Memory</h2>
<p class="hint">Resident bytes of each process's own, without what it shares.</p>
<svg id="memory" role="img" aria-label="Memory over time; at the end, {said}."></svg>
<ul class="legend">{legend}</ul>
</section>"""


def _stages(profile: Profile) -> str:
    stats = profile.stats
    rows = []
    for stage in (*_BUILD, "call", "wait", "wait_worker", "place"):
        each = stats.stages[stage]
        if not each.total_s and stage not in ("read", "wait"):
            continue
        figures = (each.mean_s, each.p50_s, each.p90_s, each.p99_s, each.max_s)
        cells = "".join(f"<td>{seconds * 1e3:,.2f}</td>" for seconds in figures)
        kind = ' class="part"' if stage in _PARTS else ""
        colour = {"wait_worker": "wait", "call": "read"}.get(stage, stage)
        rows.append(
            f'<tr><th scope="row"{kind}><span class="chip" style="--c:var(--{colour})"></span>'
            f"{_NAMES[stage]}</th><td>{each.total_s:,.2f}</td><td>{stats.share(stage):.0%}</td>"
            f"{cells}</tr>"
        )
    head = ("total, s", "of the time", "mean, ms", "p50", "p90", "p99", "max")
    return f"""<section aria-labelledby="stages-title">
<h2 id="stages-title">Stages</h2>
<p class="hint">Of {stats.recent_batches:,} batches, without the first, in which workers start;
the total is of all {stats.batches:,}.</p>
<div class="scroll" role="region" aria-labelledby="stages-title" tabindex="0"><table>
<thead><tr><th scope="col">stage</th>{"".join(f'<th scope="col">{h}</th>' for h in head)}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div>
</section>"""


def _steps(steps: Sequence[Step]) -> str:
    if not steps:
        return ""
    head = (
        "asked for at, s",
        *(f"{_WAIT_NAMES[part]}, ms" for part in WAITS),
        "your step, ms",
        "built in, ms",
        "by",
        "ready before, ms",
    )
    rows = "".join(
        f'<tr><th scope="row">{each.step}</th><td>{each.began_s:.4f}</td>'
        + "".join(f"<td>{each.waits[part] * 1e3:.2f}</td>" for part in WAITS)
        + f"<td>{each.step_s * 1e3:.2f}</td><td>{each.built_s * 1e3:.2f}</td>"
        f"<td>{html.escape(', '.join(each.builders))}</td><td>{each.ready_s * 1e3:.2f}</td></tr>"
        for each in steps
    )
    return f"""<section><details><summary>All steps, as a table</summary>
<div class="scroll" role="region" aria-label="All steps" tabindex="0"><table>
<thead><tr><th scope="col">step</th>{"".join(f'<th scope="col">{h}</th>' for h in head)}</tr></thead>
<tbody>{rows}</tbody></table></div></details></section>"""


def _code(sentence: str) -> str:
    """The text with what stands in backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(sentence))
