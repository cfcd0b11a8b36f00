"""The Generator of a record: a function of (seed, position, place), and the user's to keep."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feeder.plan.rng import RecordRng

keys = st.tuples(st.integers(0, 2**63), st.integers(0, 20))


def draw(generator):
    return [
        *generator.random(3).tolist(),
        *generator.integers(0, 1000, 3, dtype=np.uint32).tolist(),
        *generator.standard_normal(2).tolist(),
    ]


@given(st.integers(0, 2**70), keys, st.lists(keys, max_size=5))
def test_draws_depend_on_seed_position_and_place_alone(seed, key, before):
    used = RecordRng(seed)
    for position, place in before:
        draw(used.at(position, place))
        used.at(position, place).integers(0, 7, dtype=np.uint32)  # leaves 32 spare bits behind
    assert draw(used.at(*key)) == draw(RecordRng(seed).at(*key))


@given(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 5)), min_size=2))
def test_another_seed_position_or_place_draws_other_numbers(keys):
    drawn = [RecordRng(seed).at(position, place).random() for seed, position, place in keys]
    assert len(set(drawn)) == len(keys)


def test_a_generator_that_is_kept_goes_on_as_its_own():
    rng = RecordRng(0)
    kept = rng.at(1, 0)
    first = kept.random()
    rng.at(2, 0).random(5)
    rng.at(3, 0).random(5)
    assert [first, kept.random()] == RecordRng(0).at(1, 0).random(2).tolist()


def test_a_bit_generator_that_is_kept_goes_on_as_its_own():
    rng = RecordRng(0)
    kept = rng.at(1, 0).bit_generator
    rng.at(2, 0).random(5)
    expected = RecordRng(0).at(1, 0).bit_generator.random_raw(3).tolist()
    assert kept.random_raw(3).tolist() == expected


def test_a_generator_that_is_not_kept_is_used_again():
    rng = RecordRng(0)
    first = id(rng.at(1, 0))  # in one line, pytest would keep the first until the second
    assert id(rng.at(2, 0)) == first


def test_spawned_children_depend_on_seed_position_and_place_alone():
    def children(rng):
        return [child.random() for child in rng.at(5, 1).spawn(2)]

    used = RecordRng(3)
    used.at(4, 1).spawn(7)
    assert children(used) == children(RecordRng(3))
    assert children(used) != [child.random() for child in RecordRng(3).at(5, 2).spawn(2)]
    generator = RecordRng(3).at(5, 1)
    assert generator.spawn(1)[0].random() != generator.spawn(1)[0].random()
