"""`feeder profile`: its page says what was measured, and a browser draws it."""

import html.parser
import json
import re
from importlib import resources

import pytest

from feeder.cli import main
from feeder.cli.report import Profile, page
from feeder.cli.report.model import drawn, ready_counts, steps_of
from feeder.monitor import Stats
from feeder.monitor.timeline import MemorySample, Restart, Span, Timeline
from tests.cli.browser import opened

HERE = "tests/cli/loaders.py"

TIMELINE = Timeline(
    spans=(
        Span("worker 0", "read", 0, -0.010, 0.010),
        Span("worker 1", "read", 1, -0.010, 0.020),
        Span("user", "wait", 0, 0.000, 0.015),
        Span("worker 0", "transform", 0, 0.010, 0.012),
        Span("place", "place", 0, 0.012, 0.014),
        Span("user", "step", 0, 0.015, 0.045),
        Span("collector", "ready", 1, 0.020, 0.045),
        Span("worker 0", "read", 2, 0.030, 0.060),
        Span("collector", "ready", 2, 0.040, 0.041),
        Span("user", "wait", 1, 0.045, 0.065),
        Span("place", "place", 1, 0.046, 0.049),
        Span("place", "place", 2, 0.060, 0.064),
        Span("user", "step", 1, 0.065, 0.095),
        Span("user", "wait", 2, 0.095, 0.096),
    ),
    memory=(
        MemorySample(0.0, "parent", 90_000_000),
        MemorySample(0.0, "worker 0", 30_000_000),
        MemorySample(0.05, "worker 0", 32_000_000),
        MemorySample(0.05, "slots", 8_000_000),
    ),
    restarts=(Restart(0.05, "worker 1"),),
)
PROFILE = Profile("data:<loader>", TIMELINE, Stats(batches=3, num_workers=2), ("</script>",))


def test_a_wait_is_told_apart_by_what_was_waited_for():
    steps = steps_of(TIMELINE)
    assert [each.step for each in steps] == [0, 1, 2]
    placed = [pytest.approx(0.002), pytest.approx(0.007), 0.0]  # for whatever step
    assert [each.waits["place"] for each in steps] == placed
    assert [each.waits["worker"] for each in steps] == list(
        map(pytest.approx, [0.013, 0.013, 0.001])
    )
    assert [each.step_s for each in steps] == [pytest.approx(0.03), pytest.approx(0.03), 0.0]
    assert steps[0].built_s == pytest.approx(0.022)
    assert steps[0].builders == ("worker 0",)
    assert steps[1].ready_s == pytest.approx(0.025)


def test_batches_that_are_built_here_are_waited_for():
    spans = (
        Span("user", "wait", 0, 0.0, 0.010),
        Span("this process", "read", 0, 0.001, 0.004),
        Span("this process", "collate", 0, 0.004, 0.006),
    )
    (step,) = steps_of(Timeline(spans))
    assert step.waits == {"worker": pytest.approx(0.005), "build": pytest.approx(0.005), "place": 0}


def test_batches_that_lie_ready_are_counted():
    assert ready_counts(TIMELINE.spans) == [(0.020, 1), (0.040, 2), (0.041, 1), (0.045, 0)]


class Checked(html.parser.HTMLParser):
    """Sees that what is opened is closed, and gathers attributes."""

    VOID = ("meta", "link", "br")

    def __init__(self):
        super().__init__()
        self.open, self.links, self.ids = [], [], []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("src", "href"):
                self.links.append(value)
            if name == "id":
                self.ids.append(value)
            if name == "aria-labelledby":
                self.labels = value

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_says_all_in_words_too():
    text = page(PROFILE)
    checked = Checked()
    checked.feed(text)
    assert checked.open == []
    assert checked.links == ["data:,"]
    assert len(set(checked.ids)) == len(checked.ids)
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")  # no address but a name
    assert "<title>data:&lt;loader&gt; – feeder profile</title>" in text
    assert "<span>&lt;/script&gt;</span>" in text
    assert '<html lang="en">' in text
    for label in re.findall(r'aria-labelledby="([^"]+)"', text):
        assert label in checked.ids
    assert text.count('role="img"') == text.count("<svg") - 1 == 3  # one is only for the pointer
    assert (
        '<tr><th scope="row">1</th><td>0.0450</td><td>13.00</td><td>0.00</td><td>7.00</td>'
        "<td>30.00</td><td>30.00</td><td>worker 1</td><td>25.00</td></tr>"
    ) in text
    (data,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', text)
    assert json.loads(data) == drawn(PROFILE)


def test_a_browser_draws_it_and_it_can_be_zoomed_and_pointed_at(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page(PROFILE))
    script = """
      const svg = document.getElementById("timeline"), said = document.body.dataset;
      globalThis.requestAnimationFrame = (draw) => draw();  // at once
      document.getElementById("all").click();
      said.all = svg.dataset.drawn;
      said.died = svg.querySelectorAll(".died").length;
      const bodies = [...svg.querySelectorAll(".span")];
      const box = bodies[0].getBoundingClientRect();
      const at = { bubbles: true, clientX: box.left + 1, clientY: box.top + 1, pointerId: 1 };
      bodies[0].dispatchEvent(new PointerEvent("pointermove", at));
      said.tip = [...document.getElementById("tip").children].map((n) => n.textContent).join("|");
      said.dimmed = svg.querySelectorAll(".other").length;
      for (let times = 0; times < 4; times++) document.getElementById("in").click();
      said.zoomed = svg.dataset.drawn;
      said.wide = document.documentElement.scrollWidth - innerWidth;
    """
    dom, complaints = opened(path, tmp_path, 390, script)
    assert complaints == []
    assert '<html lang="en" data-drawn="all">' in dom
    body = dict(re.findall(r'data-(\w+)="([^"]*)"', re.search(r"<body[^>]*>", dom)[0]))
    shown = [span for span in TIMELINE.spans if span.stage != "ready"]
    assert body["all"] == str(len(shown))
    assert body["tip"] == "step 0: read|worker 0: 20 ms|from -10 ms on"
    assert body["dimmed"] == str(sum(span.step != 0 for span in shown))
    assert 0 < int(body["zoomed"]) < len(shown)
    assert int(body["wide"]) <= 0  # nothing has to be scrolled to, on a phone
    assert re.search(r'id="waits"[^>]* data-drawn="3"', dom)
    assert dom.count('class="row"') == 3  # parent, worker 0, slots
    assert body["died"] == "1"


def test_the_command_writes_the_page_and_prints_the_figures(tmp_path, capsys):
    path = tmp_path / "report.html"
    argv = ["profile", f"{HERE}:sharded", "--html", str(path), "--steps", "8", "--step-ms", "1"]
    assert main(argv) == 0
    out, errors = capsys.readouterr()
    assert errors == ""
    assert out.startswith("8 batches, 64 records in ")
    assert out.endswith(f"\n\n{path}: open it in a browser\n")
    text = path.read_text()
    assert f"<h1>{HERE}:sharded</h1>" in text
    assert "<span>a simulated step of 1 ms</span><span>1 worker</span>" in text
    (data,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', text)
    found = json.loads(data)
    assert found["lanes"] == ["worker 0", "place", "user"]
    assert [step[0] for step in found["steps"]] == list(range(8))
    assert main(["profile", f"{HERE}:ready", "--html", str(path), "--no-step"]) == 0
    assert "<span>no step</span><span>no workers</span>" in path.read_text()


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path, capsys):
    for path, message in (
        (tmp_path, f"`--html` must name a file, got the folder '{tmp_path}'"),
        (
            tmp_path / "none" / "x.html",
            f"`--html` must lie in a folder that is there, got '{tmp_path}/none/x.html'",
        ),
    ):
        assert main(["profile", f"{HERE}:breaks", "--html", str(path)]) == 2
        assert capsys.readouterr().err == f"feeder profile: error: {message}\n"


def colours():
    """The variables of the light and of the dark page."""
    style = resources.files("feeder.cli.report").joinpath("style.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    return [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in blocks]


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    """As WCAG 2 defines it."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


STAGES = ("read", "transform", "collate", "batch_transform", "place", "wait", "step")


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_everything_can_be_read_and_told_from_its_ground(theme):
    found = colours()[theme]
    for ground in ("surface", "ground"):
        for words in ("text", "muted", "accent"):
            assert contrast(found[words], found[ground]) >= 4.5, (words, ground)
        for mark in (*STAGES, "ready"):
            assert contrast(found[mark], found[ground]) >= 3, (mark, ground)
    for stage in STAGES:
        assert contrast(found["on"], found[stage]) >= 4.5, stage
