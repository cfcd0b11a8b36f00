"""A run that goes on with another batch size, where the user asks for it: at the same record."""

import itertools
import json
import re

import numpy as np
import pytest

import feeder
from feeder.plan.schedule import LAST_BATCH
from tests.support import digest, indices_of, noisy, rows

pytestmark = pytest.mark.matrix

SOURCE = rows(23)


class Sized:
    def __len__(self):
        return 23

    def __iter__(self):
        return iter(range(22, -1, -1))


def loader(batch_size, **options):
    return feeder.DataLoader(
        SOURCE, batch_size, num_epochs=3, transforms=[feeder.RandomMap(noisy)], **options
    )


def real_rows(batches):
    """Every real row, as bytes, in order."""
    return [
        batch["image"][row].tobytes()
        for batch in batches
        for row in range(len(batch["index"]))
        if batch.get("mask", np.ones(len(batch["index"]), bool))[row]
    ]


@pytest.mark.parametrize("order", [{"shuffle": True}, {"sampler": Sized()}], ids=["shuffle", "own"])
@pytest.mark.parametrize("last_batch", ["keep", "pad", "rollover"])
@pytest.mark.parametrize(("old", "new"), [(4, 7), (7, 4), (5, 5), (3, 23)])
def test_no_record_is_lost_or_repeated_and_draws_stay_the_same(order, last_batch, old, new):
    options = {"last_batch": last_batch, **order}
    whole = real_rows(loader(old, **options))
    first = iter(loader(old, **options))
    head = list(itertools.islice(first, 5))
    saved = json.loads(json.dumps(first.get_state()))
    second = iter(loader(new, **options))
    second.set_state(saved, allow_new_batch_size=True)
    tail = real_rows(second)
    rest = whole[len(real_rows(head)) :]
    assert tail[: len(rest)] == rest[: len(tail)]
    assert abs(len(tail) - len(rest)) < max(old, new)
    if last_batch != "rollover":
        assert tail == rest


@pytest.mark.parametrize("last_batch", LAST_BATCH)
@pytest.mark.parametrize("at", [1, 3, 5, 6])
def test_a_run_of_another_batch_size_is_saved_and_resumed_as_any_other(last_batch, at):
    first = iter(loader(4, shuffle=True, last_batch=last_batch))
    for _ in range(at):
        next(first)
    second = iter(loader(5, shuffle=True, last_batch=last_batch))
    second.set_state(first.get_state(), allow_new_batch_size=True)
    assert second.get_state()["step"] == at
    states = []
    tail = []
    for batch in second:
        tail.append(batch)
        states.append(json.loads(json.dumps(second.get_state())))
    for number, saved in enumerate(states):
        again = iter(loader(5, shuffle=True, last_batch=last_batch))
        again.set_state(saved)
        assert digest(again) == digest(tail[number + 1 :])
    assert [state["step"] for state in states] == list(range(at + 1, at + 1 + len(tail)))


def test_dropped_tails_stay_dropped_and_new_ones_are():
    first = iter(loader(10, last_batch="drop"))  # 23 records: 20 of each epoch
    next(first)
    second = iter(loader(4, last_batch="drop"))
    second.set_state(first.get_state(), allow_new_batch_size=True)
    assert indices_of(second)[:4] == [
        [10, 11, 12, 13],
        [14, 15, 16, 17],
        [18, 19, 20, 21],
        [0, 1, 2, 3],
    ]
    third = iter(loader(14, last_batch="drop"))
    third.set_state(first.get_state(), allow_new_batch_size=True)
    assert indices_of(third) == [list(range(14)), list(range(14))]  # 13 were left


@pytest.mark.parametrize(("old", "new"), list(itertools.product([3, 5, 9, 23], [2, 4, 9, 20])))
def test_a_sampler_that_is_read_in_order_goes_on_where_the_list_of_its_items_does(old, new):
    whole = len(list(loader(old, sampler=Sized())))
    for at in range(whole + 1):
        tails = []
        for sampler in (Sized(), list(Sized())):
            first = iter(loader(old, sampler=sampler))
            for _ in range(at):
                next(first)
            second = iter(loader(new, sampler=sampler))
            second.set_state(first.get_state(), allow_new_batch_size=True)
            tails.append(digest(second))
        assert tails[0] == tails[1]


def test_a_shorter_batch_that_processes_cannot_split_is_refused_at_once():
    source = rows(12)
    first = iter(feeder.DataLoader(source, 3, last_batch="keep"))
    next(first)
    options = {"process_index": 0, "process_count": 2, "last_batch": "keep"}
    second = iter(feeder.DataLoader(source, 4, **options))
    message = (
        "`state` goes on in mid-epoch, which would end with a batch of 1 rows, but the number of "
        "rows must be a multiple of the 2 processes, got 1; go on with another batch size, or with "
        '`last_batch="pad"`'
    )
    with pytest.raises(feeder.StateError, match=f"^{re.escape(message)}$"):
        second.set_state(first.get_state(), allow_new_batch_size=True)


def test_an_epoch_s_iterator_ends_with_its_epoch_whatever_the_batch_size():
    first = loader(4, last_batch="keep").epoch(1)
    next(first)
    second = loader(9, last_batch="keep").epoch(1)
    second.set_state(first.get_state(), allow_new_batch_size=True)
    assert indices_of(second) == [list(range(4, 13)), list(range(13, 22)), [22]]


def test_unasked_it_is_refused():
    saved = iter(loader(4)).get_state()
    with pytest.raises(feeder.StateError) as caught:
        iter(loader(5)).set_state(saved)
    assert caught.value.mismatches == {"batch_size": (4, 5)}


def test_allowed_it_still_refuses_what_else_differs():
    saved = iter(loader(4, shuffle=True)).get_state()
    with pytest.raises(feeder.StateError) as caught:
        iter(loader(5)).set_state(saved, allow_new_batch_size=True)
    assert caught.value.mismatches == {"shuffle": (True, False)}


def test_batches_of_a_batch_sampler_have_no_size_to_change():
    saved = iter(loader(4)).get_state()
    own = feeder.DataLoader(SOURCE, batch_sampler=[[1, 2]])
    with pytest.raises(feeder.StateError) as caught:
        iter(own).set_state(saved, allow_new_batch_size=True)
    assert caught.value.mismatches["batch_size"] == (4, None)


@pytest.mark.parametrize("change", [{"position": 9}, {"step": 3}, {"origin": [1, 4]}])
def test_a_state_that_contradicts_itself_is_refused_all_the_same(change):
    first = iter(loader(4, shuffle=True))
    for _ in range(2):
        next(first)
    saved = {**first.get_state(), **change}
    if change == {"origin": [1, 4]}:  # a run that changed its size there: it agrees with itself
        iter(loader(5, shuffle=True)).set_state(saved, allow_new_batch_size=True)
        return
    with pytest.raises(feeder.StateError, match="must have the position of its step"):
        iter(loader(5, shuffle=True)).set_state(saved, allow_new_batch_size=True)
