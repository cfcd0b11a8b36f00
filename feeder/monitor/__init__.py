"""Where does the time go, and which records were bad? Noted while batches flow."""

from feeder.monitor.bad import BadRecords
from feeder.monitor.stats import Stats
from feeder.monitor.timeline import MemorySample, Restart, Span, Timeline

__all__ = ["BadRecords", "MemorySample", "Restart", "Span", "Stats", "Timeline"]
