"""What the script draws into, with words for whom it draws nothing."""

from __future__ import annotations

import html
from collections.abc import Sequence

from feeder.cli import text
from feeder.cli.report.model import WAITS, Profile, Step, has_workers
from feeder.cli.report.words import BUILD, STAGE_NAMES, WAIT_COLOURS, wait_names


def timeline(profile: Profile) -> str:
    """Who did what for which step, and when."""
    drawn = profile.timeline
    steps = drawn.steps
    stages = (*BUILD, "place", "wait", "step", "ready")
    present = {span.stage for span in drawn.spans}
    special = {"wait": "wait of your loop", "ready": "batches that lie ready"}
    legend = "".join(
        f'<li style="--c:var(--{stage})">{special.get(stage) or STAGE_NAMES[stage]}</li>'
        for stage in stages
        if stage in present
    )
    shown = text.count(len(steps), "step")
    died = " ✕: a worker died, and was replaced." if drawn.restarts else ""
    return f"""<section aria-labelledby="timeline-title">
<div class="head"><h2 id="timeline-title">Timeline</h2>
<div class="buttons" role="group" aria-label="Timeline">
<button id="earlier" aria-label="Earlier">←</button><button id="later" aria-label="Later">→</button>
<button id="out" aria-label="Zoom out">−</button><button id="in" aria-label="Zoom in">+</button>
<button id="all">All</button></div></div>
<p class="hint">Who did what for which step, over {shown}.{died} Point at a span to see its batch on
all lanes; drag to move, Ctrl and wheel, or + and −, to zoom.</p>
<svg id="timeline" role="img" tabindex="0" aria-label="Timeline of {shown} in the lanes
 {html.escape(", ".join(drawn.lanes))}; the table of steps at the end of the page has the same in
 figures."></svg>
<svg id="overview" height="22" aria-hidden="true"></svg>
<ul class="legend">{legend}</ul>
<noscript><p>The pictures need JavaScript; the tables below have their figures.</p></noscript>
</section>"""


def waits(profile: Profile, steps: Sequence[Step]) -> str:
    """What each step waited for."""
    names = wait_names(has_workers(profile.timeline))
    longest = max(steps, key=lambda each: each.wait_s)
    kinds = [part for part in WAITS if any(each.waits[part] for each in steps)]
    legend = "".join(
        f'<li style="--c:var(--{WAIT_COLOURS[part]})">{names[part]}</li>' for part in kinds
    )
    return f"""<section aria-labelledby="waits-title">
<h2 id="waits-title">Where each step waited</h2>
<p class="hint">The longest wait was {text.duration(longest.wait_s)}, for step {longest.step:,}.</p>
<svg id="waits" role="img" aria-label="Stacked columns: what each step waited
 for, and its own time; the table of steps at the end of the page has the figures."></svg>
<ul class="legend">{legend}<li class="quiet" style="--c:var(--step)">your
 step</li></ul>
</section>"""


def memory(profile: Profile) -> str:
    """Memory of each process over time."""
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
