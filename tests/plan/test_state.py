"""A checkpoint's few integers: small, versioned, and refused where they would mislead."""

import json
import re
from dataclasses import replace

import pytest

from feeder import StateError
from feeder.plan.schedule import START, Cursor
from feeder.plan.state import Identity, Saved, restore, save

IDENTITY = Identity(
    num_records=100, batch_size=8, seed=3, shuffle=True, sampler=None, last_batch="drop"
)


def test_a_state_goes_through_json_and_comes_back():
    text = json.dumps(save(Cursor(12, 96), START, IDENTITY))
    assert len(text) < 1024
    assert restore(json.loads(text), IDENTITY) == Saved(Cursor(12, 96), START, 8)


def test_a_state_of_another_sequence_is_refused_with_every_field_that_differs():
    saved = save(Cursor(12, 96), START, IDENTITY)
    other = replace(IDENTITY, num_records=99, seed=4, shuffle=False)
    with pytest.raises(StateError) as caught:
        restore(saved, other)
    assert str(caught.value) == (
        "`state` must belong to the sequence of batches of this loader, got another one:\n"
        "  num_records: saved 100, present 99\n"
        "  seed: saved 3, present 4\n"
        "  shuffle: saved True, present False\n"
        "Restore it in a loader with the saved values, or start anew without it."
    )
    assert caught.value.mismatches == {
        "num_records": (100, 99),
        "seed": (3, 4),
        "shuffle": (True, False),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"version": 2},
            "`state` must be of format 1 or older, got format 2: it was saved by a newer "
            "jax-feeder; upgrade to restore it",
        ),
        (
            {"version": "1"},
            "`state` must be a dict that get_state() returned, got one whose 'version' is '1': "
            "it is damaged, or no state of a feeder loader",
        ),
        ({"step": -1}, "`state['step']` must be an integer from 0 to 2**62, got -1"),
        ({"step": True}, "`state['step']` must be an integer from 0 to 2**62, got True"),
        ({"position": 1.5}, "`state['position']` must be an integer from 0 to 2**62, got 1.5"),
        ({"position": None}, "`state['position']` must be an integer from 0 to 2**62, got None"),
        (
            {"position": 2**62 + 1},
            "`state['position']` must be an integer from 0 to 2**62, got 4611686018427387905",
        ),
        (
            {"origin": [0]},
            "`state['origin']` must be a step and a position, got [0]: it is damaged",
        ),
        (
            {"origin": {"a": 1}},
            "`state['origin']` must be a step and a position, got {'a': 1}: it is damaged",
        ),
        (
            {"origin": [1, 0]},
            "`state['origin']` must not be later than step 0 and position 0, got [1, 0]: it is "
            "damaged",
        ),
        ({"draws": "x"}, "`state['draws']` must be a dict or None, got 'x': it is damaged"),
        ({"extra": 1}, "`state` must have no field unknown to format 1, got 'extra'"),
    ],
)
def test_damaged_states_are_refused(change, message):
    with pytest.raises(StateError, match=f"^{re.escape(message)}$"):
        restore({**save(START, START, IDENTITY), **change}, IDENTITY)


def test_a_missing_field_is_named():
    saved = save(START, START, IDENTITY)
    del saved["seed"]
    message = "`state` must have every field of format 1, got none of ['seed']"
    with pytest.raises(StateError, match=f"^{re.escape(message)}$"):
        restore(saved, IDENTITY)


@pytest.mark.parametrize(("value", "name"), [(None, "NoneType"), ([1], "list"), ("{}", "str")])
def test_something_else_than_a_state_is_refused(value, name):
    message = f"`state` must be the dict that get_state() returned, got {name}"
    with pytest.raises(StateError, match=f"^{re.escape(message)}$"):
        restore(value, IDENTITY)


def test_a_number_is_not_taken_for_a_boolean_of_the_same_value():
    saved = {**save(START, START, IDENTITY), "shuffle": 1}
    with pytest.raises(StateError, match=r"shuffle: saved 1, present True"):
        restore(saved, IDENTITY)


def test_a_hostile_value_makes_no_hostile_message():
    for hostile in ("x" * 10**6, list(range(10**6)), {"a": {"b": [{}] * 10**5}}):
        with pytest.raises(StateError) as caught:
            restore({**save(START, START, IDENTITY), "step": hostile, "seed": hostile}, IDENTITY)
        assert len(str(caught.value)) < 1000


def test_another_batch_size_is_refused_with_the_way_to_allow_it():
    saved = {**save(START, START, IDENTITY), "batch_size": 16}
    with pytest.raises(StateError) as caught:
        restore(saved, IDENTITY)
    assert str(caught.value) == (
        "`state` must belong to the sequence of batches of this loader, got another one:\n"
        "  batch_size: saved 16, present 8\n"
        "Restore it in a loader with the saved value, or go on at the same record with "
        "set_state(state, allow_new_batch_size=True)."
    )
    assert restore(saved, IDENTITY, new_batch_size=True).batch_size == 16


@pytest.mark.parametrize("size", [0, -1, "8", None, 1.5, True])
def test_a_batch_size_that_is_none_is_refused_even_where_it_may_change(size):
    saved = {**save(START, START, IDENTITY), "batch_size": size}
    with pytest.raises(StateError, match="batch_size: saved"):
        restore(saved, IDENTITY, new_batch_size=True)


def test_a_state_of_another_source_is_refused_and_one_without_a_fingerprint_has_no_field():
    assert "source" not in save(START, START, IDENTITY)
    mixed = replace(IDENTITY, source="mix 01234567")
    saved = json.loads(json.dumps(save(START, START, mixed)))
    assert restore(saved, mixed) == Saved(START, START, 8)
    for state, present, shown in (
        (saved, IDENTITY, "saved 'mix 01234567', present None"),
        (save(START, START, IDENTITY), mixed, "saved None, present 'mix 01234567'"),
    ):
        with pytest.raises(StateError, match=f"  source: {shown}\n"):
            restore(state, present)
