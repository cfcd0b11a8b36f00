"""What is asked for ahead, given up, and asked for again: the same batches, each record once."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feeder
from feeder.produce.ambient import Ambient
from feeder.produce.builder import Builder
from feeder.produce.inline import build_here
from feeder.produce.lineup import Lineup
from feeder.produce.slots import Slab
from tests.streams.shards import Plain, Stateful
from tests.support import as_bytes

READ, OPENED = Counter(), Counter()


class Counted(Plain):
    """An iterator that counts what is read of it."""

    def __next__(self):
        found = super().__next__()
        READ[int(found["id"])] += 1
        return {**found, "n": self.number, "ok": self.number % 2 == 0}


class CountedStateful(Counted, Stateful):
    pass


class Ahead:
    """A producer that builds in this thread, as many batches at a time as the test says."""

    def __init__(self, recipe, window, at_once):
        self.window = window
        self._recipe, self._at_once = recipe, at_once

    def session(self, locate=None):
        return AheadSession(Builder(self._recipe, Ambient(0)), self._at_once, locate)


class AheadSession:
    def __init__(self, builder, at_once, locate):
        self._builder, self._at_once, self._locate = builder, at_once, locate
        self._slab = Slab(1 << 24)
        self._asked, self._arrived = [], []

    def submit(self, chunk):
        self._asked.append(chunk)

    def wait(self):
        count = next(self._at_once)
        now, self._asked = self._asked[:count], self._asked[count:]
        self._arrived += [
            (chunk.step, build_here(self._builder, chunk, self._slab, locate=self._locate))
            for chunk in now
        ]

    def take(self):
        arrived, self._arrived = self._arrived, []
        return arrived

    def renew(self):
        self._asked.clear()
        self._arrived.clear()

    def close(self):
        self.renew()
        self._builder.close()
        self._slab.close()


def delivered(feed, restarts=()):
    """The batches of a feed, with where each begins; given up and asked for again now and then."""
    found = []
    while True:
        while (fed := feed.next()) is None:
            if not feed.submit():
                return found
            feed.wait()
        found.append((feed.cursor(), as_bytes(fed.outcome.tree())))
        feed.commit(fed)
        if len(found) in restarts:
            feed.restart()


@st.composite
def streams(draw):
    lengths = draw(st.lists(st.integers(0, 12), min_size=1, max_size=7))
    return {
        "lengths": lengths,
        "kind": draw(st.sampled_from([Counted, CountedStateful])),
        "cycle_length": draw(st.integers(1, len(lengths))),
        "block_length": draw(st.sampled_from([None, 1, 2, 5])),
        "batch_size": draw(st.integers(1, 6)),
        "num_epochs": draw(st.integers(1, 2)),
        "last_batch": draw(st.sampled_from(["drop", "keep", "pad", "rollover"])),
        "snapshot_every": draw(st.sampled_from([1, 3])),
        "shuffle": draw(st.sampled_from([False, False, feeder.WindowShuffle(6)])),
    }


def loader_of(asked):
    lengths, kind = asked["lengths"], asked["kind"]

    def opened(shard, epoch, state):
        OPENED[shard, epoch] += 1
        return kind(shard, epoch, lengths[shard])

    source = feeder.Stream(
        opened,
        len(lengths),
        cycle_length=asked["cycle_length"],
        block_length=asked["block_length"],
    )
    names = ("batch_size", "num_epochs", "last_batch", "snapshot_every", "shuffle")
    return feeder.DataLoader(source, **{name: asked[name] for name in names})


@pytest.mark.filterwarnings("ignore:.* records of the stream were read again")
@settings(max_examples=120, deadline=None)
@given(streams(), st.integers(1, 12), st.lists(st.integers(1, 12), min_size=1), st.data())
def test_batches_are_the_same_however_far_ahead_others_are_built(asked, window, counts, data):
    with loader_of(asked) as loader:
        expected = [as_bytes(batch) for batch in loader]
        restarts = data.draw(st.sets(st.integers(1, max(1, len(expected)))))
        READ.clear()
        OPENED.clear()
        at_once = iter(lambda: data.draw(st.sampled_from(counts)), 0)
        ahead = Ahead(loader._ordering.recipe, window, at_once)
        feeds = loader._ordering.on(np.arange, None).feeds(ahead)
        feed = feeds.open(feeds.origin)
        found = delivered(feed, restarts)
        feed.close()
        assert [batch for _, batch in found] == expected
        assert set(OPENED.values()) <= {1}
        assert set(READ.values()) <= {1}
        if found:
            step = data.draw(st.integers(0, len(found) - 1))
            resumed = feeds.open(found[step][0])
            assert [batch for _, batch in delivered(resumed)] == expected[step:]
            resumed.close()


@pytest.mark.parametrize("name", ["read", "stop", "report"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_while_lanes_are_read_loses_and_repeats_nothing(monkeypatch, name, when):
    asked = {"lengths": [9, 4, 7], "kind": CountedStateful, "cycle_length": 2, "block_length": None}
    asked |= {"batch_size": 4, "num_epochs": 1, "last_batch": "keep", "snapshot_every": 1}
    with loader_of({**asked, "shuffle": False}) as loader:
        expected = [as_bytes(batch) for batch in loader]
        whole, calls = getattr(Lineup, name), itertools.count()

        def interrupted(lineup, *arguments):
            is_hit = next(calls) == 1
            if is_hit and when == "before":
                raise KeyboardInterrupt
            found = whole(lineup, *arguments)
            if is_hit:
                raise KeyboardInterrupt
            return found

        monkeypatch.setattr(Lineup, name, interrupted)
        found, interrupts = [], 0
        batches = iter(loader)
        while len(found) < len(expected):
            try:
                found.append(as_bytes(next(batches)))
            except KeyboardInterrupt:
                interrupts += 1
        assert interrupts == 1
        assert found == expected
