"""Memory of a slot is not used again before every computation over it has ended.

Batches are dropped at once while computations that read them late are still under way, in slots
that are few: whoever used one early would change a checksum.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import feeder
from tests.place.test_placement import SHARDINGS

STEPS, ROWS, COLUMNS = 60, 16, 4096
"""Batches of 64 KiB: each shard is aligned, so JAX uses the slot's memory in place."""

PRODUCERS = pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}],
    ids=["inline", "processes", "threads"],
)


def records(index):
    return np.full(COLUMNS, index, np.int8) + np.arange(COLUMNS, dtype=np.int8)


def expected(step):
    rows = np.arange(step * ROWS, (step + 1) * ROWS) % 100
    return np.stack([records(row) for row in rows]).astype(np.int64)


def made(options, **more):
    source = np.arange(100)
    return feeder.DataLoader(
        source,
        ROWS,
        num_epochs=None,
        transforms=[records],
        max_memory_bytes=12 * ROWS * COLUMNS,
        last_batch="rollover",
        **options,
        **more,
    )


@jax.jit
def late_checksum(batch, turns):
    """Reads the batch after a while, in an order that no early reuse leaves as it is."""
    late = jax.lax.fori_loop(0, turns, lambda _, x: jnp.sin(x) + 1, jnp.ones(()))
    weights = jnp.arange(batch.size, dtype=jnp.int32).reshape(batch.shape) % 1009
    return (batch.astype(jnp.int32) * weights).sum() + (late > 100).astype(jnp.int32)


def checksum(batch):
    weights = np.arange(batch.size).reshape(batch.shape) % 1009
    return int((batch * weights).sum().astype(np.int32))


@PRODUCERS
@pytest.mark.parametrize("name", ["one device", "data", "replicated", "interleaved"])
def test_late_checksums_of_dropped_batches_are_right_under_pressure(options, name):
    sums = []
    with made(options, sharding=SHARDINGS[name]) as loader:
        batches = iter(loader)
        for step in range(STEPS):
            sums.append(late_checksum(next(batches), 20_000))
            if step % 4 == 3:  # so few slots hold so many computations
                sums[-1].block_until_ready()
    assert [int(each) for each in sums] == [checksum(expected(step)) for step in range(STEPS)]


@PRODUCERS
def test_donated_batches_are_safe(options):
    step = jax.jit(lambda batch, turns: late_checksum(batch, turns) + batch, donate_argnums=0)
    outputs = {}
    with made(options, sharding=SHARDINGS["one device"]) as loader:
        batches = iter(loader)
        for number in range(STEPS):
            outputs[number] = step(next(batches), 1000)
            if number >= 4:  # the memory of a donated batch may live on as that of an output
                output = np.asarray(outputs.pop(number - 4))
                right = expected(number - 4)
                assert np.array_equal(output, (checksum(right) + right).astype(output.dtype))


@PRODUCERS
def test_batches_that_are_kept_stay_as_they_are(options):
    options = {**options, "sharding": SHARDINGS["data"]}
    with made(options) as loader:
        batches = iter(loader)
        kept = {step: next(batches) for step in range(4)}
        for _ in range(20):
            next(batches)
    for step, batch in kept.items():
        assert np.array_equal(np.asarray(batch), expected(step))
