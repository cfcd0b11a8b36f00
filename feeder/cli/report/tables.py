"""The same in figures."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from feeder.cli.report.model import WAITS, Profile, Step, has_workers
from feeder.cli.report.words import BUILD, STAGE_NAMES, wait_names

_PARTS = ("wait_worker", "place", "call")


def stages(profile: Profile) -> str:
    """What each stage took."""
    stats = profile.stats
    rows = []
    for stage in (*BUILD, "call", "wait", "wait_worker", "place"):
        each = stats.stages[stage]
        if not each.total_s and stage not in ("read", "wait"):
            continue
        figures = (each.mean_s, each.p50_s, each.p90_s, each.p99_s, each.max_s)
        cells = "".join(f"<td>{seconds * 1e3:,.2f}</td>" for seconds in figures)
        kind = ' class="part"' if stage in _PARTS else ""
        colour = {"wait_worker": "wait", "call": "read"}.get(stage, stage)
        rows.append(
            f'<tr><th scope="row"{kind}><span class="chip" style="--c:var(--{colour})"></span>'
            f"{STAGE_NAMES[stage]}</th><td>{each.total_s:,.2f}</td><td>{stats.share(stage):.0%}</td>"
            f"{cells}</tr>"
        )
    head = ("total, s", "of the time", "mean, ms", "p50", "p90", "p99", "max")
    return f"""<section aria-labelledby="stages-title">
<h2 id="stages-title">Stages</h2>
<p class="hint">Of {stats.recent_batches:,} batches, without the first, in which workers start;
the total is of all {stats.batches:,}.</p>
<div class="scroll" role="region" aria-labelledby="stages-title" tabindex="0"><table>
{_head(("stage", *head))}
<tbody>{"".join(rows)}</tbody></table></div>
</section>"""


def all_steps(profile: Profile, steps: Sequence[Step]) -> str:
    """Every step, for whom pictures say nothing."""
    names = wait_names(has_workers(profile.timeline))
    head = (
        "asked for at, s",
        *(f"{names[part]}, ms" for part in WAITS),
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
{_head(("step", *head))}
<tbody>{rows}</tbody></table></div></details></section>"""


def _head(names: Iterable[str]) -> str:
    cells = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f"<thead><tr>{cells}</tr></thead>"
