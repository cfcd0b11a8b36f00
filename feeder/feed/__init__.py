"""Local batches in step order: asked for ahead, built by workers, put back in order."""

from feeder.feed.protocol import Fed, Feed, Feeds

__all__ = ["Fed", "Feed", "Feeds"]
