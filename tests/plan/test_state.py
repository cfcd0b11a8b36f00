"""A checkpoint's few integers: small, versioned, and refused where they would mislead."""

import json
import re

import pytest

from feeder import StateError
from feeder.plan.schedule import Cursor
from feeder.plan.state import Identity, restore, save

IDENTITY = Identity(num_records=100, batch_size=8, seed=3, shuffle=True, last_batch="drop")


def test_a_state_goes_through_json_and_comes_back():
    text = json.dumps(save(Cursor(12, 96), IDENTITY))
    assert len(text) < 1024
    assert restore(json.loads(text), IDENTITY) == Cursor(12, 96)


def test_a_state_of_another_sequence_is_refused_with_every_field_that_differs():
    saved = save(Cursor(12, 96), IDENTITY)
    other = Identity(num_records=99, batch_size=8, seed=4, shuffle=False, last_batch="drop")
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
        ({"step": -1}, "`state['step']` must be a non-negative integer, got -1"),
        ({"step": True}, "`state['step']` must be a non-negative integer, got True"),
        ({"position": 1.5}, "`state['position']` must be a non-negative integer, got 1.5"),
        ({"position": None}, "`state['position']` must be a non-negative integer, got None"),
        (
            {"position": 2**62 + 1},
            "`state['position']` must be at most 2**62, got 4611686018427387905",
        ),
        ({"extra": 1}, "`state` must have no field unknown to format 1, got 'extra'"),
    ],
)
def test_damaged_states_are_refused(change, message):
    with pytest.raises(StateError, match=f"^{re.escape(message)}$"):
        restore({**save(Cursor(0, 0), IDENTITY), **change}, IDENTITY)


def test_a_missing_field_is_named():
    saved = save(Cursor(0, 0), IDENTITY)
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
    saved = {**save(Cursor(0, 0), IDENTITY), "shuffle": 1}
    with pytest.raises(StateError, match=r"shuffle: saved 1, present True"):
        restore(saved, IDENTITY)
