"""`feeder.testing`: what passes, and what a failure says."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import feeder
from feeder.testing import assert_reproducible, assert_same_batches, digest

from .support import noisy, rows


def test_digests_are_pinned_on_every_platform_and_version():
    batch = {"x": np.arange(3, dtype=np.float32), "y": ("a", b"b", 1, 2.5, None, True)}
    assert digest([batch]) == "6970f7ae056345fb705866272ccf9ab106482f5ed819bf50e206cf1724b23733"
    with feeder.DataLoader(
        rows(10_000), 64, shuffle=True, seed=1, transforms=[feeder.RandomMap(noisy)]
    ) as loader:
        assert (
            digest(loader, 20) == "48b5345241c4db8df151d1f10f4164431c47bf0843bb46964260df07520d68eb"
        )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0),
        (1, True),
        ("a", b"a"),
        (np.int32(1), np.int64(1)),
        (np.zeros(2), np.zeros((1, 2))),
        (np.zeros(2), [0.0, 0.0]),
        ([], ()),
        ({}, None),
        ({"a": 1}, {"b": 1}),
        ([[1], [2]], [[1, 2], []]),
        (0.0, -0.0),
        (np.array(["a", "b"], object), np.array(["ab", ""], object)),
    ],
)
def test_what_differs_in_type_or_value_differs_in_digest(a, b):
    assert digest([a]) != digest([b])
    with pytest.raises(AssertionError, match=r"^step 0: "):
        assert_same_batches([a], [b])


def test_what_is_the_same_has_the_same_digest():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert digest([array]) == digest([jnp.asarray(array)]) == digest([np.asfortranarray(array)])
    assert digest([array]) == digest([array.astype(">f4")])
    assert digest([{"a": 1, "b": 2}]) == digest([{"b": 2, "a": 1}])
    assert digest([np.float64("nan")]) == digest([np.float64("nan")])
    assert_same_batches([array], [array.copy()])


def test_a_leaf_without_an_exact_form_is_refused():
    message = (
        "batch['x'] must be an array, a number, a string, bytes or None to have a digest, got "
        "object; turn it into one of these in a transform"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        digest([{"x": object()}])


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (
            [{"x": np.array([1, 2, 3])}] * 2,
            [{"x": np.array([1, 2, 3])}, {"x": np.array([1, 5, 3])}],
            "step 1: batch['x'], row 1, is np.int64(2) in a, np.int64(5) in b",
        ),
        (
            [{"x": np.zeros(2)}],
            [{"x": np.zeros(3)}],
            "step 0: batch['x'] is float64(2,) in a, float64(3,) in b",
        ),
        ([1, 2], [1], "step 1: b has ended, the other has not"),
        ([[1, "a"]], [[1, "b"]], "step 0: batch[1] is 'a' in a, 'b' in b"),
    ],
)
def test_a_failure_names_the_first_step_leaf_and_row(a, b, message):
    with pytest.raises(AssertionError, match=f"^{re.escape(message)}$"):
        assert_same_batches(a, b)


def make(**options):
    return feeder.DataLoader(
        rows(40), 8, shuffle=True, num_epochs=2, transforms=[feeder.RandomMap(noisy)], **options
    )


def test_a_reproducible_loader_passes():
    assert_reproducible(make, num_workers=(0, 2), process_counts=(1, 2, 4))


def test_a_loader_that_depends_on_its_workers_fails_with_the_reason():
    def spoilt(num_workers, **options):
        return feeder.DataLoader(rows(40), 8, seed=num_workers, shuffle=True, **options)

    with pytest.raises(
        AssertionError,
        match=r"^num_workers=1 differs from num_workers=0: step 0: batch\['image'\], ",
    ):
        assert_reproducible(spoilt, num_workers=(0, 1), steps=3)


def test_a_loader_that_depends_on_its_processes_fails_with_the_reason():
    def spoilt(process_index, process_count, **options):
        return make(process_index=0, process_count=process_count, **options)

    with pytest.raises(
        AssertionError, match=r"^the batches of 2 processes differ from those of one"
    ):
        assert_reproducible(spoilt, num_workers=(0,))
