"""A real browser, without a window: what a page becomes in it."""

import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
)


def opened(page: Path, folder: Path, width: int, script: str = "") -> tuple[str, list[str]]:
    """The page's document once its scripts have run, and what they had to complain of.

    Args:
        page: An HTML file.
        folder: An empty one.
        width: Of the window, in pixels.
        script: What is run after the page's own scripts.
    """
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        raise AssertionError(
            f"the report is tested in a browser, and none of {', '.join(NAMES)} is here; install "
            "one: apt-get install chromium"
        )
    tried = folder / "tried.html"
    extra = f'<script type="module">{script}</script></body>'
    tried.write_text(page.read_text().replace("</body>", extra))
    done = subprocess.run(
        [
            browser,
            *OPTIONS,
            f"--user-data-dir={folder / 'browser'}",
            f"--window-size={width},900",
            "--dump-dom",
            tried.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, complaints
