"""Where does the time go? Stage timings, summed while batches flow."""

from feeder.monitor.stats import Stats

__all__ = ["Stats"]
