"""Where does the time go, and which records were bad? Noted while batches flow."""

from feeder.monitor.bad import BadRecords
from feeder.monitor.stats import Stats

__all__ = ["BadRecords", "Stats"]
