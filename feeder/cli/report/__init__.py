"""A profile as one HTML page: ``model`` is what it shows, ``page`` writes it.

The page needs no network, and shows its tables without scripts too. ``style.css`` has the colours,
``draw.js`` draws the pictures.
"""

from feeder.cli.report.model import Profile
from feeder.cli.report.page import page

__all__ = ["Profile", "page"]
