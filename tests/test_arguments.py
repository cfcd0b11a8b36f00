"""Bad arguments fail in the constructor, before any process starts."""

import re
import subprocess
import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import feeder

from .support import rows

SHARDING = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"batch_size": 0},
            ValueError,
            "`batch_size` must be an integer of at least 1, got 0",
        ),
        (
            {"batch_size": -3},
            ValueError,
            "`batch_size` must be an integer of at least 1, got -3",
        ),
        (
            {"batch_size": 2.0},
            TypeError,
            "`batch_size` must be an integer of at least 1, got 2.0",
        ),
        (
            {"batch_size": True},
            TypeError,
            "`batch_size` must be an integer of at least 1, got True",
        ),
        (
            {"batch_size": 101},
            ValueError,
            "`batch_size` must be at most 100, the records of an epoch, with "
            '`last_batch="drop"`, got 101: every batch would be dropped; use "keep", "pad" or '
            '"rollover"',
        ),
        (
            {"batch_size": 301, "num_epochs": 3, "last_batch": "rollover"},
            ValueError,
            "`batch_size` must be at most 300, the records of all epochs, with "
            '`last_batch="rollover"`, got 301; use "keep" or "pad"',
        ),
        (
            {"num_workers": -1},
            ValueError,
            "`num_workers` must be an integer of at least 0, got -1",
        ),
        ({"seed": -1}, ValueError, "`seed` must be an integer of at least 0, got -1"),
        ({"seed": None}, TypeError, "`seed` must be an integer of at least 0, got None"),
        (
            {"num_epochs": 0},
            ValueError,
            "`num_epochs` must be an integer of at least 1, got 0; use None to go on for ever",
        ),
        (
            {"shuffle": 1},
            TypeError,
            "`shuffle` must be True, False or a feeder.BlockShuffle, got 1",
        ),
        (
            {"last_batch": "discard"},
            ValueError,
            "`last_batch` must be 'drop', 'keep', 'pad' or 'rollover', got 'discard'",
        ),
        (
            {"transforms": [None]},
            TypeError,
            "`transforms[0]` must be callable as transform(record), got None",
        ),
        ({"collate": 3}, TypeError, "`collate` must be callable as collate(records), got 3"),
        (
            {"prefetch_batches": 0},
            ValueError,
            "`prefetch_batches` must be an integer of at least 1, got 0",
        ),
        (
            {"debug_checks": 1},
            TypeError,
            "`debug_checks` must be True or False, got 1",
        ),
        (
            {"device_batches": 0},
            ValueError,
            "`device_batches` must be an integer of at least 1, got 0",
        ),
        (
            {"max_memory_bytes": 0},
            ValueError,
            "`max_memory_bytes` must be an integer of at least 1, got 0",
        ),
        (
            {"process_index": 1},
            ValueError,
            "`process_index` and `process_count` must be given together, got 1 and None",
        ),
        (
            {"process_index": 2, "process_count": 2},
            ValueError,
            "`process_index` must be below `process_count` = 2, got 2",
        ),
        (
            {"process_index": 0, "process_count": 3},
            ValueError,
            "`batch_size` must be a multiple of the 3 processes, got 8",
        ),
        (
            {"process_index": 0, "process_count": 8, "last_batch": "keep"},
            ValueError,
            '`last_batch="keep"` ends each epoch with a batch of 4 rows, which 8 processes cannot '
            'split evenly; use "pad"',
        ),
        (
            {"sharding": "data"},
            TypeError,
            "`sharding` must be a jax.sharding.Sharding, got 'data'; use NamedSharding(mesh, "
            "P('data')), or feeder.batch_sharding(mesh)",
        ),
        (
            {"sharding": SHARDING, "batch_size": 20},
            ValueError,
            "`batch_size` must be a multiple of 8, the number of shards that `sharding` cuts the "
            "batch into (mesh axis 'data' of size 8), got 20; use 16 or 24",
        ),
        (
            {"sharding": SHARDING, "batch_size": 4},
            ValueError,
            "`batch_size` must be a multiple of 8, the number of shards that `sharding` cuts the "
            "batch into (mesh axis 'data' of size 8), got 4; use 8",
        ),
        (
            {"sharding": SHARDING, "last_batch": "keep"},
            ValueError,
            '`last_batch="keep"` ends each epoch with a batch of 4 rows, which `sharding` cannot '
            'cut evenly; use "pad"',
        ),
        (
            {"sharding": SHARDING, "process_index": 1, "process_count": 2},
            ValueError,
            "`process_index` and `process_count` must be JAX's own, 0 of 1, with a `sharding`, got "
            "1 of 2; leave them out, or simulate hosts without a sharding",
        ),
    ],
)
def test_a_bad_argument_is_named_with_its_rule_and_value(options, kind, message, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)  # no process may start
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        feeder.DataLoader(rows(100), **{"batch_size": 8, **options})


def test_a_single_transform_is_asked_for_as_a_sequence():
    with pytest.raises(TypeError, match=r"^`transforms` must be a sequence of callables, got .*"):
        feeder.DataLoader(rows(8), 2, transforms=len)
    with pytest.raises(TypeError, match=r"^`transforms` must be a sequence of callables, got .*"):
        feeder.DataLoader(rows(8), 2, transforms=feeder.RandomMap(max))


def test_a_random_map_needs_a_function():
    message = "`function` must be callable as function(record, rng), got 3"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        feeder.RandomMap(3)


NO_SOURCE = (
    "`source` must have len() and [], or be a stream: an iterable, a function that returns an "
    "iterator, or an object with num_shards and open()"
)


class OnlyLength:
    def __len__(self):
        return 3


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (
            iter([1, 2]),
            TypeError,
            "`source` must be readable more than once, got list_iterator, which is used up after "
            "one pass; give the function that makes it, or an object whose __iter__ begins anew",
        ),
        (
            OnlyLength(),
            TypeError,
            f"{NO_SOURCE}, got OnlyLength",
        ),
        (3, TypeError, f"{NO_SOURCE}, got int"),
        (
            lambda shard, epoch, state: [],
            TypeError,
            "`source` must be callable without arguments, where it is a function that returns an "
            "iterator, got <lambda>(shard, epoch, state); feeder.Stream takes open(shard, epoch, "
            "state), feeder.FromCallable fn(batch_size)",
        ),
        ("text", TypeError, "`source` must be a collection of records, got str"),
        (
            OnlyLength,
            TypeError,
            "`source` must be a collection of records, got the class OnlyLength",
        ),
        ({}, TypeError, "`source` must hold at least one array, got {}"),
        (
            {"x": np.zeros(3), "y": np.zeros(4)},
            ValueError,
            "`source` must hold arrays of one length, got len(source['x']) = 3, "
            "len(source['y']) = 4",
        ),
        (
            {"x": [1, 2]},
            TypeError,
            "`source` must be a pytree of arrays, got list at source['x']; use numpy.asarray, or "
            "a list of records",
        ),
        (
            {"x": np.float32(3)},
            TypeError,
            "`source` must hold arrays of rows, got a single value at source['x']",
        ),
        ([], ValueError, "`source` must hold 1 to 2**62 records, got 0"),
        (np.zeros((0, 3)), ValueError, "`source` must hold 1 to 2**62 records, got 0"),
    ],
)
def test_what_is_no_source_is_refused(source, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        feeder.DataLoader(source, 1)


def test_a_source_that_cannot_reach_the_workers_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(TypeError, match=r"^`source`, `transforms`, .* must be picklable"):
        feeder.DataLoader([threading.Lock()], 1, num_workers=1)
    feeder.DataLoader([threading.Lock()], 1).close()


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            lambda record, rng: record,
            "`transforms[0]` must be callable as transform(record), got <lambda>(record, rng); "
            "wrap it in feeder.RandomMap, which gives it a Generator",
        ),
        (
            lambda: None,
            "`transforms[0]` must be callable as transform(record), got <lambda>()",
        ),
        (
            feeder.RandomMap,
            "`transforms[0]` must be callable as transform(record), got the class RandomMap "
            "itself; give RandomMap(function)",
        ),
    ],
)
def test_a_transform_that_cannot_be_called_with_a_record_is_refused(transform, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        feeder.DataLoader([1, 2], 1, transforms=[transform])


def test_a_table_of_columns_is_refused_with_the_line_to_write():
    table = type("DataFrame", (), {"__module__": "pandas.core.frame"})()
    message = (
        "`source` must be a collection of records, got a pandas.DataFrame, a table of columns; "
        'give a dict of its columns as arrays, as {"x": table["x"].to_numpy()}, or write it to a '
        "file for feeder.sources.Parquet"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        feeder.DataLoader(table, 1)
