"""The user's own order: samplers and batch samplers of every kind, and what excludes what."""

import itertools
import json
import random
import re
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feeder
from feeder.plan.schedule import LAST_BATCH
from tests.support import digest, indices_of, noisy, rows

pytestmark = pytest.mark.matrix

SOURCE = rows(20)
ORDER = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 19]
BATCHES = [[3, 1], [4, 1, 5], [9], [2, 6, 5, 3], [5, 8]]


class Indexed:
    """Random access, as user code offers it."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        if not 0 <= index < len(self.items):
            raise IndexError(index)
        return self.items[index]


class Iterable:
    """Read from its beginning each time."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class Sized(Iterable):
    def __len__(self):
        return len(self.items)


class Epochs(Sized):
    """Another order in each epoch, which it is told."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        items = list(self.items)
        random.Random(self.epoch).shuffle(items)
        return iter(items)


class Seeded(Sized):
    """Its generator goes on from epoch to epoch, as PyTorch's RandomSampler's does."""

    def __init__(self, items):
        super().__init__(items)
        self.random = random.Random(5)

    def __iter__(self):
        items = list(self.items)
        self.random.shuffle(items)
        return iter(items)


class StatefulIterator:
    def __init__(self, items):
        self.items = items
        self.at = 0
        self.read = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        self.read += 1
        return self.items[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class IteratorHasState(Sized):
    def __iter__(self):
        return StatefulIterator(self.items)


class SamplerHasState(Sized):
    """The state lies with the sampler, whose next iterator goes on from it."""

    def __init__(self, items):
        super().__init__(items)
        self.at = 0

    def __iter__(self):
        while self.at < len(self.items):
            self.at += 1
            yield self.items[self.at - 1]
        self.at = 0

    def get_state(self):
        return self.at

    def set_state(self, state):
        self.at = state


class ResetsItself(Sized):
    """A generator that begins anew by itself, and speaks of the last epoch until it is read."""

    def __init__(self, items):
        super().__init__(items)
        self.yielded = 0
        self.next = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        start, self.next = self.next, 0
        self.yielded = start
        items = self.items[self.epoch % 3 :] + self.items[: self.epoch % 3]
        for item in items[start:]:
            self.yielded += 1
            yield item

    def state_dict(self):
        return {"yielded": self.yielded}

    def load_state_dict(self, state):
        self.next = state["yielded"]


class IndexedEpochs(Indexed):
    """Random access, another order in each epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return self.items[(index + self.epoch) % len(self.items)]


ITERABLES = [Iterable, Sized, Epochs, Seeded, IteratorHasState, SamplerHasState, ResetsItself]
KINDS = [list, tuple, np.array, Indexed, IndexedEpochs, *ITERABLES]


def loader(num_workers=0, source=SOURCE, **options):
    transforms = [feeder.RandomMap(noisy)]
    return feeder.DataLoader(source, transforms=transforms, num_workers=num_workers, **options)


def interrupted(make, at):
    """The batches of a run that stops after ``at`` and goes on in another loader."""
    with make() as first, iter(first) as batches:
        head = list(itertools.islice(batches, at))
        saved = json.loads(json.dumps(batches.get_state()))
    with make() as second, iter(second) as batches:
        batches.set_state(saved)
        assert batches.get_state() == saved
        return head + list(batches)


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, Indexed, Iterable, Sized, IteratorHasState, SamplerHasState]
)
@pytest.mark.parametrize("last_batch", LAST_BATCH)
def test_every_kind_of_sampler_gives_the_batches_of_the_list(kind, last_batch):
    options = {"batch_size": 4, "num_epochs": 3, "last_batch": last_batch}
    expected = list(loader(sampler=ORDER, **options))
    made = loader(sampler=kind(ORDER), **options)
    assert digest(made) == digest(expected)
    assert digest(made) == digest(expected)  # another run of the same loader
    if kind is not Iterable:
        assert len(made) == len(expected)


def test_the_sampler_says_which_records_and_in_which_order():
    batches = list(loader(sampler=ORDER, batch_size=4, last_batch="keep"))
    assert indices_of(batches) == [[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [19]]
    again = list(loader(sampler=ORDER, batch_size=4, num_epochs=2, last_batch="rollover"))
    assert sum(indices_of(again), []) == (ORDER + ORDER)[:24]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last_batch", LAST_BATCH)
def test_a_run_resumes_wherever_it_was_interrupted(kind, last_batch):
    def make():
        return loader(sampler=kind(ORDER), batch_size=4, num_epochs=3, last_batch=last_batch)

    whole = list(make())
    for at in range(len(whole) + 1):
        assert digest(interrupted(make, at)) == digest(whole)


@pytest.mark.parametrize("kind", [list, Indexed, IndexedEpochs, *ITERABLES])
def test_a_run_over_given_batches_resumes_wherever_it_was_interrupted(kind):
    def make():
        return loader(batch_sampler=kind(BATCHES), num_epochs=2)

    whole = list(make())
    if kind not in (Epochs, Seeded, IndexedEpochs, ResetsItself):
        assert indices_of(whole) == BATCHES * 2
        assert digest(whole) == digest(loader(batch_sampler=BATCHES, num_epochs=2))
    for at in range(len(whole) + 1):
        assert digest(interrupted(make, at)) == digest(whole)


@pytest.mark.parametrize("kind", [list, Indexed, IndexedEpochs, *ITERABLES[1:]])
@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_any_batch_and_any_epoch_is_found(kind, name):
    size = {"batch_size": 4, "last_batch": "keep"} if name == "sampler" else {}
    items = ORDER if name == "sampler" else BATCHES
    made = loader(**{name: kind(items)}, num_epochs=3, **size)
    whole = list(made)
    assert len(made) == len(whole) == 3 * made.steps_per_epoch
    for step, batch in enumerate(whole):
        assert digest([made.batch(step)]) == digest([batch])
    for epoch in range(3):
        steps = slice(epoch * made.steps_per_epoch, (epoch + 1) * made.steps_per_epoch)
        assert digest(made.epoch(epoch)) == digest(whole[steps])


def test_an_epoch_s_iterator_resumes_too():
    made = loader(sampler=Sized(ORDER), batch_size=3, num_epochs=3, last_batch="rollover")
    whole = list(made.epoch(1))
    batches = made.epoch(1)
    state = batches.get_state()
    next(batches)
    later = batches.get_state()
    for saved, skipped in ((state, 0), (later, 1)):
        again = made.epoch(1)
        again.set_state(json.loads(json.dumps(saved)))
        assert digest(again) == digest(whole[skipped:])


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"sampler": Seeded(ORDER), "batch_size": 4},
        {"sampler": Indexed(ORDER), "batch_size": 4},
        {"batch_sampler": Seeded(BATCHES)},
        {"sampler": feeder.WeightedSampler(np.arange(20)), "batch_size": 4},
    ],
    ids=["iterable", "indexed", "batches", "weighted"],
)
def test_workers_change_nothing(options, num_workers):
    expected = digest(loader(num_epochs=2, **options))
    with loader(num_workers, num_epochs=2, **options) as made:
        assert digest(made) == expected


@pytest.mark.parametrize("kind", [list, Indexed, Iterable, Seeded])
def test_processes_split_the_rows_of_a_sampler(kind):
    whole = list(loader(sampler=kind(ORDER), batch_size=4, num_epochs=2, last_batch="pad"))
    parts = [
        list(
            loader(
                sampler=kind(ORDER),
                batch_size=4,
                num_epochs=2,
                last_batch="pad",
                process_index=index,
                process_count=2,
            )
        )
        for index in range(2)
    ]
    joined = [
        {name: np.concatenate([a[name], b[name]]) for name in a}
        for a, b in zip(*parts, strict=True)
    ]
    assert digest(joined) == digest(whole)


@pytest.mark.parametrize("kind", [list, Sized])
def test_batches_that_processes_cannot_split_are_an_error_in_their_place(kind):
    options = {"process_index": 0, "process_count": 2}
    made = iter(loader(batch_sampler=kind([[1, 2], [3, 4], [5, 6, 7]]), **options))
    assert indices_of(itertools.islice(made, 2)) == [[1], [3]]
    message = (
        "`batch_sampler` gave 3 rows for step 2: the number of rows must be a multiple of the 2 "
        "processes, got 3"
    )
    for _ in range(2):  # and stays one
        with pytest.raises(feeder.SamplerError, match=f"^{re.escape(message)}$") as caught:
            next(made)
        assert caught.value.step == 2


def test_a_state_of_a_sampler_is_small_and_the_same_on_every_process():
    states = []
    for index in range(2):
        made = loader(
            sampler=IteratorHasState(ORDER * 50),
            batch_size=4,
            process_index=index,
            process_count=2,
        )
        batches = iter(made)
        for _ in range(60):
            next(batches)
        states.append(json.dumps(batches.get_state()))
    assert states[0] == states[1]
    assert len(states[0]) < 1024


def test_a_state_of_the_iterator_spares_reading_from_the_beginning():
    read = []

    class Watched(IteratorHasState):
        def __iter__(self):
            read.append(super().__iter__())
            return read[-1]

        def __deepcopy__(self, memo):
            return self

    def make():
        return loader(sampler=Watched(ORDER * 5000), batch_size=100)

    with iter(make()) as batches:
        head = list(itertools.islice(batches, 500))
        saved = batches.get_state()
    assert len(head) == 500
    read.clear()
    with iter(make()) as batches:
        batches.set_state(saved)
        next(batches)
    assert sum(iterator.read for iterator in read) < 10_000  # of 50 000


def test_a_state_that_is_no_json_is_not_kept_and_the_sampler_is_read_again():
    class Opaque(IteratorHasState):
        def __iter__(self):
            iterator = super().__iter__()
            iterator.state_dict = lambda: {"at": object()}
            return iterator

    def make():
        return loader(sampler=Opaque(ORDER), batch_size=4)

    assert digest(interrupted(make, 2)) == digest(make())


def test_a_sampler_that_gives_another_order_when_read_again_is_found_out():
    order = ORDER * 10

    def make():
        return loader(sampler=Sized(list(order)), batch_size=4)

    with iter(make()) as batches:
        for _ in range(25):
            next(batches)
        saved = batches.get_state()
    order[90] = 0
    batches = iter(make())
    batches.set_state(saved)
    message = (
        "`sampler` must give the same items each time it is read from its beginning, or from its "
        "state, got others than before; seed it, or give it state_dict() and load_state_dict()"
    )
    with pytest.raises(feeder.SamplerError, match=f"^{re.escape(message)}$"):
        next(batches)


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_a_sampler_that_is_not_seeded_is_refused(name):
    class Unseeded(Sized):
        def __iter__(self):
            items = list(self.items)
            random.shuffle(items)
            return iter(items)

    size = {"batch_size": 4} if name == "sampler" else {}
    items = ORDER if name == "sampler" else BATCHES
    with pytest.raises(
        ValueError, match=rf"^`{name}` must give the same items each time .*seed it \(PyTorch"
    ):
        loader(**{name: Unseeded(items)}, **size)


def test_a_sampler_that_cannot_be_copied_is_refused():
    sampler = Sized(ORDER)
    sampler.lock = threading.Lock()
    with pytest.raises(
        TypeError, match=r"^`sampler` must be copyable, as copy.deepcopy does it, so"
    ):
        loader(sampler=sampler, batch_size=4)


def test_the_data_that_a_sampler_refers_to_are_not_copied():
    class Data(list):
        def __deepcopy__(self, memo):
            raise AssertionError("the data were copied")

    inner = Seeded(ORDER)
    inner.data_source = Data(range(20))
    outer = Sized(BATCHES)
    outer.sampler = inner
    assert len(list(loader(sampler=inner, batch_size=4))) == 3
    assert len(list(loader(batch_sampler=outer))) == 5


def test_an_epoch_asks_for_nothing_of_the_next():
    class OneEpoch(Epochs):
        def set_epoch(self, epoch):
            if epoch:
                raise OSError("no second epoch today")
            super().set_epoch(epoch)

    class OneEpochIndexed(IndexedEpochs):
        def set_epoch(self, epoch):
            if epoch:
                raise OSError("no second epoch today")

    for kind in (OneEpoch, OneEpochIndexed):
        made = loader(sampler=kind(ORDER), batch_size=4, num_epochs=2, last_batch="keep")
        assert len(list(made.epoch(0))) == 4
        made = loader(batch_sampler=kind(BATCHES), num_epochs=2)
        assert len(list(made.epoch(0))) == 5


def test_batches_of_the_same_records_cut_elsewhere_are_another_sampler():
    for kind in (list, Sized):
        batches = iter(loader(batch_sampler=kind([[0, 1], [2, 3], [4, 5], [6, 7]])))
        next(batches), next(batches)
        other = iter(loader(batch_sampler=kind([[0], [1, 2, 3], [4, 5, 6], [7]])))
        with pytest.raises((feeder.StateError, feeder.SamplerError)):  # noqa: PT012
            other.set_state(batches.get_state())
            next(other)


def test_what_is_written_to_a_sampler_later_is_no_part_of_it():
    order, batches = np.array(ORDER), [list(batch) for batch in BATCHES]
    one = loader(sampler=order, batch_size=4)
    other = loader(batch_sampler=batches)
    expected = digest(one), digest(other)
    order[:] = 0
    batches.append([1])
    assert (digest(one), digest(other)) == expected


def test_a_state_that_is_no_json_as_it_is_is_not_kept():
    class Tuples(SamplerHasState):
        def get_state(self):
            return (self.at,)

        def set_state(self, state):
            assert isinstance(state, tuple)
            (self.at,) = state

    def make():
        return loader(sampler=Tuples(ORDER), batch_size=4)

    assert digest(interrupted(make, 2)) == digest(make())


def test_fewer_indices_than_a_batch_in_all_epochs_are_an_error():
    made = loader(sampler=Iterable([1, 2]), batch_size=5, num_epochs=2, last_batch="rollover")
    message = "`sampler` must give at least one batch of 5 indices in all epochs, got fewer"
    for action in (lambda: next(iter(made)), lambda: made.element_spec, lambda: made.batch(0)):
        with pytest.raises(feeder.SamplerError, match=f"^{message}$"):
            action()


def test_the_user_s_sampler_is_left_as_it_is():
    sampler = SamplerHasState(ORDER)
    made = loader(sampler=sampler, batch_size=4)
    next(iter(made))
    assert sampler.at == 0
    assert digest(made) == digest(loader(sampler=ORDER, batch_size=4))


def test_an_endless_iterable_is_a_sampler():
    class Endless:
        def __iter__(self):
            return itertools.cycle(ORDER)

    made = loader(sampler=Endless(), batch_size=5, num_epochs=None)
    assert indices_of(itertools.islice(made, 3)) == [ORDER[:5], ORDER[5:10], (ORDER + ORDER)[10:15]]
    assert indices_of([made.batch(1)]) == [ORDER[5:10]]
    with pytest.raises(TypeError, match=r"^len\(\) of a loader needs an end, and `sampler` has no"):
        len(made)
    with pytest.raises(TypeError, match=r"^steps_per_epoch of a loader needs epochs of known"):
        _ = made.steps_per_epoch
    with pytest.raises(TypeError, match=r"^epoch\(1\) of a loader needs epochs of known length"):
        made.epoch(1)


def test_a_weighted_sampler_draws_anew_in_each_epoch():
    made = loader(
        sampler=feeder.WeightedSampler(np.ones(20), num_samples=12), batch_size=4, num_epochs=2
    )
    assert len(made) == 6
    first, second = indices_of(made.epoch(0)), indices_of(made.epoch(1))
    assert first != second
    assert indices_of(made) == first + second


def test_an_infinite_sampler_has_no_epochs_and_no_end():
    made = loader(sampler=feeder.InfiniteSampler(), batch_size=8)
    far = 10**15
    batches = iter(made)
    next(batches)
    state = {**batches.get_state(), "step": far, "position": far * 8}
    batches.set_state(json.loads(json.dumps(state)))
    assert digest([next(batches)]) == digest([made.batch(far)])
    with pytest.raises(TypeError, match=r"^len\(\) of a loader needs an end, and an Infinite"):
        len(made)
    with pytest.raises(ValueError, match=r"^`epoch` must be below `num_epochs` = 1, got 1$"):
        made.epoch(1)


def test_weights_must_be_as_many_as_records():
    message = "`weights` of the sampler must be one for each of the 20 records of `source`, got 3"
    for sampler in (feeder.WeightedSampler([1, 2, 3]), feeder.InfiniteSampler([1, 2, 3])):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            loader(sampler=sampler, batch_size=2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"sampler": ORDER, "batch_size": 2, "shuffle": True},
            ValueError,
            "`shuffle` must be left out with `sampler`, which gives the order, got True",
        ),
        (
            {"batch_sampler": BATCHES, "batch_size": 2},
            ValueError,
            "`batch_size` must be left out with `batch_sampler`, which makes up the batches, got 2",
        ),
        (
            {"batch_sampler": BATCHES, "sampler": [1]},
            ValueError,
            "`sampler` must be left out with `batch_sampler`, which makes up the batches, got [1]",
        ),
        (
            {"batch_sampler": BATCHES, "shuffle": True},
            ValueError,
            "`shuffle` must be left out with `batch_sampler`, which makes up the batches, got True",
        ),
        (
            {"batch_sampler": BATCHES, "last_batch": "keep"},
            ValueError,
            "`last_batch` must be left out with `batch_sampler`, which makes up the batches, got "
            "'keep'",
        ),
        (
            {},
            TypeError,
            "`batch_size` must be an integer of at least 1 without a `batch_sampler`, got None",
        ),
        (
            {"sampler": 3, "batch_size": 2},
            TypeError,
            "`sampler` must be an object with len() and [], or an iterable, of record indices, "
            "got 3",
        ),
        (
            {"sampler": {0: 1}, "batch_size": 2},
            TypeError,
            "`sampler` must be an object with len() and [], or an iterable, of record indices, "
            "got {0: 1}",
        ),
        (
            {"sampler": [], "batch_size": 2},
            ValueError,
            "`sampler` must give at least one item, got none: its len() is 0",
        ),
        (
            {"sampler": [0.5, 1.5], "batch_size": 2},
            TypeError,
            "`sampler` must be a sequence of integers, got one that makes an array of shape (2,) "
            "and dtype float64",
        ),
        (
            {"sampler": [0, 20], "batch_size": 2},
            ValueError,
            "`sampler` must give integers from 0 to 19, the records of `source`, got 20 at 1",
        ),
        (
            {"sampler": Indexed([0, -1]), "batch_size": 2},
            ValueError,
            "`sampler` must give integers from 0 to 19, the records of `source`, got -1 at 1",
        ),
        (
            {"batch_sampler": [3, 4]},
            ValueError,
            "`batch_sampler` must give batches of record indices, at least one in each, got 3 for "
            "step 0",
        ),
        (
            {"sampler": [1, 2], "batch_size": 3},
            ValueError,
            '`batch_size` must be at most 2, the indices of an epoch, with `last_batch="drop"`, '
            'got 3: every batch would be dropped; use "keep", "pad" or "rollover"',
        ),
        (
            {"sampler": feeder.InfiniteSampler(), "batch_size": 3, "num_epochs": 2},
            ValueError,
            "`num_epochs` must be left out with an InfiniteSampler, whose draws have no end, got 2",
        ),
    ],
)
def test_what_excludes_what_is_explained(options, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        feeder.DataLoader(SOURCE, **options)


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_what_can_be_read_only_once_is_refused(name):
    size = {"batch_size": 2} if name == "sampler" else {}
    with pytest.raises(
        TypeError, match=rf"^`{name}` must be readable more than once, got <list_it"
    ):
        feeder.DataLoader(SOURCE, **{name: iter([1, 2, 3])}, **size)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([1, 2, "x", 4], "`sampler` must give integers, got 'x'"),
        (
            [1, 2, 3, 20],
            "`sampler` must give integers from 0 to 19, the records of `source`, got 20 at 3",
        ),
    ],
)
def test_an_index_that_is_none_is_an_error_at_its_batch_and_not_before(items, message):
    batches = iter(loader(sampler=Sized(items), batch_size=2))
    assert indices_of([next(batches)]) == [[1, 2]]
    for _ in range(2):
        with pytest.raises(feeder.SamplerError, match=f"^{re.escape(message)}$"):
            next(batches)


def test_what_a_sampler_raises_arrives_at_its_batch_as_its_own_type():
    class Broken(Indexed):
        def __getitem__(self, index):
            if index == 7:
                raise LookupError("no order today")
            return index

    class BrokenIterable:
        def __iter__(self):
            yield from range(7)
            raise LookupError("no order today")

    probed = Broken(range(100))  # 32 of its indices are looked at beforehand; 7 is none of them
    for sampler in (probed, BrokenIterable()):
        for num_workers in (0, 2):
            with loader(num_workers, sampler=sampler, batch_size=3, source=rows(100)) as made:
                batches = iter(made)
                assert indices_of(itertools.islice(batches, 2)) == [[0, 1, 2], [3, 4, 5]]
                for _ in range(2):
                    with pytest.raises(LookupError, match="no order today"):
                        next(batches)


@pytest.mark.parametrize(("says", "only"), [(5, ""), (30, "only ")])
def test_a_sampler_whose_len_is_wrong_is_found_out(says, only):
    class Liar(Iterable):
        def __len__(self):
            return says

    batches = iter(loader(sampler=Liar(ORDER), batch_size=5, last_batch="keep"))
    with pytest.raises(feeder.SamplerError, match=rf"^`sampler` must give {says} items in each e"):
        list(batches)


def test_epochs_without_a_batch_are_an_error_not_a_hang():
    class Short:
        def __iter__(self):
            return iter([1, 2])

    made = loader(sampler=Short(), batch_size=3, num_epochs=None)
    message = (
        "`sampler` must give at least 3 indices in each epoch, with `batch_size` 3 and "
        "`last_batch` 'drop', got 2 in epoch 0"
    )
    with pytest.raises(feeder.SamplerError, match=f"^{re.escape(message)}$"):
        next(iter(made))

    class Empty:
        def __iter__(self):
            return iter(())

    with pytest.raises(feeder.SamplerError, match="at least one batch in each epoch, got none in"):
        next(iter(loader(batch_sampler=Empty(), num_epochs=None)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ORDER, ORDER[::-1]),
        (Indexed(ORDER), Indexed(ORDER[::-1])),
        (feeder.WeightedSampler(np.ones(20)), feeder.WeightedSampler(np.arange(20))),
        (feeder.InfiniteSampler(), feeder.InfiniteSampler(np.ones(20))),
        (Sized(ORDER), Epochs(ORDER)),
        (ORDER, None),
    ],
    ids=["list", "indexed", "weights", "infinite", "iterable", "none"],
)
def test_a_state_of_another_sampler_is_refused(one, other):
    saved = iter(loader(sampler=one, batch_size=2)).get_state()
    with pytest.raises(feeder.StateError) as caught:
        iter(loader(sampler=other, batch_size=2)).set_state(saved)
    assert list(caught.value.mismatches) == ["sampler"]


@pytest.mark.parametrize(
    "draws",
    [
        None,
        {},
        {"epoch": 0, "items": -1, "crc": 0, "snapshot": None},
        {"epoch": 0, "items": 4, "crc": 0, "snapshot": 7},
        {"epoch": 10**18, "items": 4, "crc": 0, "snapshot": None},
        {"epoch": 0, "items": 3, "crc": 0, "snapshot": None},
        {"epoch": 0, "items": 4, "crc": "x", "snapshot": None},
        {
            "epoch": 0,
            "items": 4,
            "crc": 0,
            "snapshot": {"of": "iterator", "state": 1, "items": 9, "crc": 0},
        },
        {
            "epoch": 0,
            "items": 4,
            "crc": 0,
            "snapshot": {"of": "it", "state": 1, "items": "x", "crc": 0},
        },
    ],
)
def test_a_damaged_state_of_a_sampler_is_refused(draws):
    batches = iter(loader(sampler=Sized(ORDER), batch_size=4))
    next(batches)
    saved = {**batches.get_state(), "draws": draws}
    with pytest.raises(feeder.StateError):
        batches.set_state(saved)


def test_a_state_of_an_endless_sampler_whose_epoch_cannot_be_ends():
    class Endless:
        def __iter__(self):
            return itertools.cycle(ORDER)

    batches = iter(loader(sampler=Endless(), batch_size=4, num_epochs=None))
    next(batches)
    saved = batches.get_state()
    for epoch in (1, 2**40):
        batches.set_state({**saved, "draws": {**saved["draws"], "epoch": epoch, "snapshot": None}})
        with pytest.raises(feeder.SamplerError, match="must give the same items"):
            next(batches)


def test_a_saved_state_may_be_changed_after_it_was_set():
    batches = iter(loader(sampler=Sized(ORDER), batch_size=4))
    next(batches)
    saved = batches.get_state()
    batches.set_state(saved)
    saved["draws"].clear()
    assert indices_of(batches) == [[5, 9, 2, 6], [5, 3, 5, 8]]


@settings(deadline=None)
@given(st.data())
def test_any_lists_of_indices_come_out_as_they_went_in(data):
    order = data.draw(st.lists(st.integers(0, 19), min_size=1, max_size=30))
    size = data.draw(st.integers(1, len(order)))
    last_batch = data.draw(st.sampled_from(LAST_BATCH))
    epochs = data.draw(st.integers(1, 3))
    options = {"batch_size": size, "num_epochs": epochs, "last_batch": last_batch}
    expected = list(loader(sampler=order, **options))
    assert digest(loader(sampler=Iterable(order), **options)) == digest(expected)
    if last_batch in ("keep", "rollover"):
        whole = (order * epochs)[: len(expected) * size]
        assert sum(indices_of(expected), [])[: len(whole)] == whole
