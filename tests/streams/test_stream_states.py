"""States of streams: exact, small, and good for any number of workers and hosts."""

import json
import warnings

import numpy as np
import pytest

import feeder
from tests.streams.shards import (
    LENGTHS,
    WORKERS,
    OwnNames,
    Plain,
    Stateful,
    each_of,
    ids_of,
    run,
    stream,
)
from tests.support import as_bytes

pytestmark = pytest.mark.matrix

OPTIONS = {
    "plain": {},
    "shuffle": {"shuffle": feeder.WindowShuffle(16)},
    "rollover": {"last_batch": "rollover"},
    "filter": {"transforms": [feeder.Filter(lambda value: value["id"] % 3 != 0)]},
    "flat map": {
        "transforms": [feeder.FlatMap(lambda value: [value] * int(value["x"] * 7 % 4), 3)]
    },
}
KINDS = [Plain, Stateful, OwnNames]


def stopped_after(steps, loader):
    with iter(loader) as batches:
        for _ in range(steps):
            next(batches)
        return json.loads(json.dumps(batches.get_state()))


def rest_of(loader, state):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of what is read again
        with iter(loader) as batches:
            batches.set_state(state)
            return list(batches)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_run_goes_on_from_every_step(options, kind):
    with feeder.DataLoader(stream(kind=kind), 4, num_epochs=2, **options) as loader:
        expected = list(map(as_bytes, loader))
        for step in range(len(expected) + 1):
            state = stopped_after(step, loader)
            assert list(map(as_bytes, rest_of(loader, state))) == expected[step:]


@pytest.mark.parametrize("kind", KINDS)
@each_of(first=1)
def test_a_state_holds_for_any_number_of_workers(workers, kind):
    options = {"num_epochs": 2, "last_batch": "keep", "shuffle": feeder.WindowShuffle(16)}
    with feeder.DataLoader(stream(kind=kind), 4, **options) as loader:
        expected = list(map(as_bytes, loader))
        states = [stopped_after(step, loader) for step in (1, 9)]
        with feeder.DataLoader(stream(kind=kind), 4, **options, **workers) as other:
            for state in states:
                assert list(map(as_bytes, rest_of(other, state))) == expected[state["step"] :]
            saved = stopped_after(5, other)
        assert list(map(as_bytes, rest_of(loader, saved))) == expected[5:]


def test_the_state_is_that_of_the_batches_delivered():
    def states(**options):
        with feeder.DataLoader(stream(cycle_length=3), 4, **options) as loader:
            with iter(loader) as batches:
                return [batches.get_state(), *(batches.get_state() for _ in batches)]

    assert states() == states(num_workers=2) == states(num_workers=3)


@each_of()
def test_iterators_with_a_state_read_nothing_again(workers, tmp_path):
    log = tmp_path / "opened"
    source = stream([100] * 3, kind=Stateful, log=log)
    with feeder.DataLoader(source, 6, **workers) as loader:
        state = stopped_after(10, loader)
        log.write_text("")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with iter(loader) as batches:
                batches.set_state(state)
                next(batches)
                batches.close()
    opened = sorted(line.split(maxsplit=3)[1:] for line in log.read_text().splitlines())
    assert opened == [[str(shard), "0", "{'number': 20}"] for shard in range(3)]


@each_of()
def test_iterators_without_a_state_are_read_again_with_one_warning(workers):
    with feeder.DataLoader(stream([100] * 3), 6, **workers) as loader:
        state = stopped_after(10, loader)
        batches = iter(loader)
        batches.set_state(state)
        with pytest.warns(RuntimeWarning, match="60 records of the stream were read again") as told:
            next(batches)
        for _ in batches:  # with no other
            pass
    assert len(told) == 1
    assert "give them state_dict(), and let open(shard, epoch, state) begin there" in str(
        told[0].message
    )
    assert told[0].filename == __file__


@pytest.mark.parametrize("workers", [WORKERS[0], WORKERS[2]], ids=["inline", "2"])
def test_snapshots_are_taken_every_so_many_steps(workers, tmp_path):
    log = tmp_path / "opened"
    source = stream([100] * 3, kind=Stateful, log=log)
    with feeder.DataLoader(source, 6, snapshot_every=4, **workers) as loader:
        expected = ids_of(loader)
        for step in (3, 4, 10, 11, 12):
            state = stopped_after(step, loader)
            log.write_text("")
            assert ids_of(rest_of(loader, state)) == expected[step:]
            at = step // 4 * 4 * 2
            opened = {line.split(maxsplit=3)[3] for line in log.read_text().splitlines()}
            assert opened == {f"{{'number': {at}}}" if at else "None"}


def test_a_finished_iterator_has_a_state_that_is_finished():
    with feeder.DataLoader(stream(), 10, last_batch="keep") as loader:
        with iter(loader) as batches:
            assert len(list(batches)) == 6
            state = batches.get_state()
        assert rest_of(loader, state) == []
    with feeder.DataLoader(stream(), 10, last_batch="keep", num_epochs=2) as longer:
        assert ids_of(rest_of(longer, state)) == ids_of(longer)[6:]


def test_a_state_of_another_batch_size_goes_on_at_the_same_record():
    with feeder.DataLoader(stream(kind=Stateful), 4, last_batch="keep") as loader:
        everything = sum(ids_of(loader), [])
        state = stopped_after(3, loader)
    with feeder.DataLoader(stream(kind=Stateful), 6, last_batch="keep") as other:
        with pytest.raises(feeder.StateError, match="batch_size: saved 4, present 6"):
            iter(other).set_state(state)
        with iter(other) as batches:
            batches.set_state(state, allow_new_batch_size=True)
            got = list(batches)
            assert batches.get_state()["step"] == 3 + len(got)
    assert sum(ids_of(got), []) == everything[12:]


def test_a_checkpoint_of_some_hosts_opens_on_others():
    options = {"last_batch": "pad", "num_epochs": 2, "shuffle": feeder.WindowShuffle(16)}
    expected = list(map(as_bytes, run(stream(kind=Stateful), 6, **options)))
    state, got = None, []
    for count, steps in ((2, 4), (1, 5), (3, 11)):
        parts, states = [], []
        for index in range(count):
            host = {"process_index": index, "process_count": count}
            with feeder.DataLoader(stream(kind=Stateful), 6, **options, **host) as loader:
                with iter(loader) as batches:
                    if state is not None:
                        batches.set_state(state)
                    parts.append([next(batches) for _ in range(steps)])
                    states.append(json.loads(json.dumps(batches.get_state())))
        got += [
            {key: np.concatenate([part[key] for part in split]) for key in split[0]}
            for split in zip(*parts, strict=True)
        ]
        state = states[-1]
        assert all(each == state for each in states)
    assert list(map(as_bytes, got)) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", 7),
        ("lanes", [[0, 1]] * 2),
        ("shards", [[0, 99, 0, 0, 0, None]]),
        ("shards", [[0, 1]]),
        ("shards", None),
        ("row", -1),
    ],
)
def test_a_damaged_state_is_refused(field, value):
    with feeder.DataLoader(stream(kind=Stateful), 4) as loader:
        state = stopped_after(2, loader)
        state["draws"][field] = value
        with pytest.raises(feeder.StateError):
            iter(loader).set_state(state)


def test_a_state_of_another_stream_is_refused():
    with feeder.DataLoader(stream(), 4) as loader:
        state = stopped_after(2, loader)
    for other, named in (
        (stream(LENGTHS[:-1]), "num_shards"),
        (stream(block_length=2), "block_length"),
        (stream(cycle_length=2), "cycle_length"),
    ):
        with feeder.DataLoader(other, 4) as loader:
            with pytest.raises(feeder.StateError, match=named):
                iter(loader).set_state(state)


def test_no_snapshot_of_an_epoch_gone_by_is_kept():
    with feeder.DataLoader(stream([6, 6], Stateful), 4, num_epochs=None) as loader:
        batches = iter(loader)
        for _ in range(60):
            next(batches)
            batches.get_state()
        assert len(batches._feed._snapshots._known) <= 2


def test_the_states_of_all_processes_are_one_state():
    from feeder.plan.state import merged

    with feeder.DataLoader(stream(kind=Stateful), 4) as loader:
        expected = ids_of(loader)
        state = stopped_after(4, loader)
        other = stopped_after(5, loader)
    one, two = json.loads(json.dumps(state)), json.loads(json.dumps(state))
    one["draws"]["shards"], two["draws"]["shards"] = (
        state["draws"]["shards"][:3],
        [[0, 0, 0, 0, 0, None], *state["draws"]["shards"][2:]],
    )
    assert merged([one, two]) == state
    with feeder.DataLoader(stream(kind=Stateful), 4) as loader:
        assert ids_of(rest_of(loader, [one, two])) == expected[4:]
        with pytest.raises(feeder.StateError, match="got step 4 and step 5"):
            iter(loader).set_state([state, other])
        with pytest.raises(feeder.StateError, match="or a list of those of all processes"):
            iter(loader).set_state([])


class Saved(Plain):
    """Says where it is, and cannot be told."""

    def state_dict(self):
        return {"number": self.number}


def test_a_state_that_reaches_nobody_is_not_relied_on(tmp_path):
    def reads(item):
        return Saved(item, 0, 40)

    def once():
        return Saved(0, 0, 40)

    for source in (feeder.stream_of([0, 1, 2], reads), once):
        with feeder.DataLoader(source, 6) as loader:
            expected = ids_of(loader)
            state = stopped_after(4, loader)
            batches = iter(loader)
            batches.set_state(state)
            with pytest.warns(RuntimeWarning, match="24 records of the stream were read again"):
                batch = next(batches)
            assert batch["id"].tolist() == expected[4]
            batches.close()


def test_an_open_that_ignores_its_state_is_an_error():
    source = feeder.Stream(lambda shard, epoch, state: Saved(shard, epoch, 40), 2)
    for workers in ({}, {"num_workers": 2}):
        with feeder.DataLoader(source, 4, **workers) as loader:
            state = stopped_after(3, loader)
            batches = iter(loader)
            batches.set_state(state)
            with pytest.raises(feeder.StreamError) as caught:
                next(batches)
    assert str(caught.value) == (
        "`open` must begin at the state that it is given, got {'number': 6} for shard 0 and an "
        "iterator whose state is {'number': 0}; let open(shard, epoch, state) begin there, or give "
        "the iterator load_state_dict() or set_state()"
    )


def test_new_workers_tell_what_was_read_again():
    with feeder.DataLoader(stream([100] * 3), 6) as loader:
        state = stopped_after(10, loader)
    with feeder.DataLoader(stream([100] * 3), 6, num_workers=2) as loader:
        batches = iter(loader)
        batches.set_state(state)
        with pytest.warns(RuntimeWarning, match="60 records of the stream were read again"):
            next(batches)


class Counted:
    """A data set with a state of its own, as torchdata has them."""

    def __init__(self, length):
        self.length, self.number, self.epochs = length, 0, []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        while self.number < self.length:
            self.number += 1
            yield {"id": self.number - 1, "epoch": self.epochs[-1]}
        self.number = 0

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


@each_of()
def test_a_data_set_with_a_state_is_saved_in_the_workers(workers):
    source = Counted(30)
    with feeder.DataLoader(source, 4, num_epochs=2, last_batch="keep", **workers) as loader:
        expected = list(map(as_bytes, loader))
        state = stopped_after(5, loader)
        assert state["draws"]["shards"] == [[0, 20, 0, 20, 0, {"number": 20}]]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with iter(loader) as batches:
                batches.set_state(state)
                assert list(map(as_bytes, batches)) == expected[5:]
    assert (source.number, source.epochs) == (0, [])


SHARED = {}


class Shared(Stateful):
    """One of several that return the same object."""

    def state_dict(self):
        SHARED.update(number=self.number, shard=self.shard)
        return SHARED


@each_of()
def test_iterators_may_return_the_same_object_and_change_it(workers):
    with feeder.DataLoader(stream(kind=Shared), 4, **workers) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        saved = batches.get_state()
        told = {entry[0]: entry[-1]["shard"] for entry in saved["draws"]["shards"] if entry[-1]}
        assert all(lane == shard for lane, shard in told.items())
        rest = [as_bytes(batch) for batch in batches]
        other = iter(loader)
        other.set_state(saved)
        assert [as_bytes(batch) for batch in other] == rest


class Leaving(Stateful):
    """One whose state ends the program, once, in the third shard."""

    left = False

    def state_dict(self):
        if self.shard == 3 and self.number == 2 and not self.left:
            self.left = True
            raise SystemExit(3)
        return super().state_dict()


@each_of()
def test_a_state_that_ends_the_program_is_an_error_of_its_record(workers):
    with feeder.DataLoader(stream([8] * 4, Leaving), 8, **workers) as loader:
        with pytest.raises(SystemExit) as caught:
            next(iter(loader))
    assert "at record 2 of shard 3" in str(caught.value.__cause__)
