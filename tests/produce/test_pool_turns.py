"""Ctrl-C may come between any two instructions: whose turn it is, is known all the same."""

import numpy as np
import psutil
import pytest

import feeder
from feeder.produce.pool import Pool


def living():
    children = psutil.Process().children(recursive=True)
    return {child for child in children if child.status() != psutil.STATUS_ZOMBIE}


@pytest.fixture
def interrupted(monkeypatch):
    """Lets Ctrl-C come right after, or before, a turn of the pool's."""

    def at(name, when):
        whole, armed = getattr(Pool, name), [True]

        def once(pool, *arguments):
            if armed[0] and when == "before":
                armed[0] = False
                raise KeyboardInterrupt
            found = whole(pool, *arguments)
            if armed[0] and found is not False:
                armed[0] = False
                raise KeyboardInterrupt
            return found

        monkeypatch.setattr(Pool, name, once)

    return at


@pytest.mark.parametrize(
    ("name", "when"), [("_take_turn", "after"), ("_end_turn", "before"), ("_end_turn", "after")]
)
def test_ctrl_c_around_a_turn_leaves_it_to_the_next_call(interrupted, name, when):
    loader = feeder.DataLoader(np.arange(100), 5, num_workers=1)
    batches = iter(loader)
    found = [next(batches).tolist() for _ in range(3)]
    workers = living()
    interrupted(name, when)
    interrupts = 0
    while len(found) < 20:
        try:
            found.append(next(batches).tolist())
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 1
    assert sum(found, []) == list(range(100))
    loader.close()
    assert workers
    assert not workers & living()


def test_ctrl_c_before_the_end_keeps_nothing_alive(interrupted):
    loader = feeder.DataLoader(np.arange(100), 5, num_workers=1)
    batches = iter(loader)
    next(batches)
    workers = living()
    interrupted("_end_turn", "before")
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    loader.close()
    assert workers
    assert not workers & living()


def test_next_in_a_signal_handler_that_interrupted_it_is_refused(monkeypatch):
    with feeder.DataLoader(np.arange(100), 5, num_workers=1) as loader:
        batches, others = iter(loader), iter(loader)
        whole, seen = Pool._pump, []

        def handled(pool, inbox):
            if not seen:
                seen.append(None)
                with pytest.raises(RuntimeError, match="by a signal handler that interrupted it"):
                    next(others)
            whole(pool, inbox)

        monkeypatch.setattr(Pool, "_pump", handled)
        assert next(batches).tolist() == [0, 1, 2, 3, 4]
        assert seen
        assert next(others).tolist() == [0, 1, 2, 3, 4]
