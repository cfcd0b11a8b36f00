"""Writes the page: its parts, and what its script draws."""

from __future__ import annotations

import html
import json
from importlib import resources

from feeder.cli.report.model import Profile, drawn, steps_of
from feeder.cli.report.pictures import memory, timeline, waits
from feeder.cli.report.summary import summary
from feeder.cli.report.tables import all_steps, stages
from feeder.version import VERSION


def page(profile: Profile) -> str:
    """The HTML, complete: it needs nothing else, and no network.

    Args:
        profile: A run of one step at least.
    """
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
{summary(profile, steps)}
{timeline(profile)}
{waits(profile, steps)}
{memory(profile)}
{stages(profile)}
{all_steps(profile, steps)}
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
