"""Where does the time go, and which records were bad? Noted while batches flow."""

from feeder.monitor.bad import BadRecords
from feeder.monitor.bar import progress
from feeder.monitor.meter import Meter
from feeder.monitor.stats import ProcessMemory, StageStats, Stats
from feeder.monitor.timeline import MemorySample, Restart, Span, Timeline
from feeder.monitor.trace import named

__all__ = [
    "BadRecords",
    "MemorySample",
    "Meter",
    "ProcessMemory",
    "Restart",
    "Span",
    "StageStats",
    "Stats",
    "Timeline",
    "named",
    "progress",
]
