"""Global arrays on eight emulated devices: the right rows, on the right devices, as asked."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import feeder
from feeder.place.fit import described

from ..support import digest, rows, run

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])
DEVICES = np.array(jax.devices())
SHARDINGS = {
    "data": NamedSharding(Mesh(DEVICES, ("data",)), P("data")),
    "replicated": NamedSharding(Mesh(DEVICES, ("data",)), P()),
    "two axes": NamedSharding(Mesh(DEVICES.reshape(4, 2), ("data", "model")), P("data")),
    "batch over both": NamedSharding(
        Mesh(DEVICES.reshape(4, 2), ("data", "model")), P(("data", "model"))
    ),
    "trailing axis": NamedSharding(
        Mesh(DEVICES.reshape(4, 2), ("data", "model")), P("data", "model")
    ),
    "model only": NamedSharding(Mesh(DEVICES.reshape(4, 2), ("data", "model")), P(None, "model")),
    "interleaved": NamedSharding(Mesh(DEVICES[[3, 7, 0, 4, 1, 5, 2, 6]], ("data",)), P("data")),
    "one device": SingleDeviceSharding(DEVICES[3]),
}


def test_there_are_eight_devices():
    assert len(DEVICES) == 8


@WORKERS
@pytest.mark.parametrize("name", SHARDINGS)
def test_batches_lie_as_the_sharding_says(name, num_workers):
    sharding = SHARDINGS[name]
    source = {"x": np.arange(50 * 4 * 2, dtype=np.float32).reshape(50, 4, 2)}
    expected = run(source, 16, shuffle=True, num_epochs=2)
    got = run(source, 16, shuffle=True, num_epochs=2, num_workers=num_workers, sharding=sharding)
    assert len(got) == len(expected) == 6
    for batch, wanted in zip(got, expected, strict=True):
        assert isinstance(batch["x"], jax.Array)
        assert batch["x"].sharding == sharding
        assert np.array_equal(np.asarray(batch["x"]), wanted["x"])
        for shard in batch["x"].addressable_shards:
            assert np.array_equal(np.asarray(shard.data), wanted["x"][shard.index])


def test_a_jitted_sum_over_a_global_batch_equals_numpys():
    source = {"x": np.arange(64 * 3, dtype=np.float32).reshape(64, 3)}
    total = jax.jit(jnp.sum)
    sums = [float(total(batch["x"])) for batch in run(source, 16, sharding=SHARDINGS["data"])]
    assert sums == [float(source["x"][16 * k : 16 * k + 16].sum()) for k in range(4)]


def test_structure_is_kept_and_leaves_that_are_no_numbers_stay_on_the_host():
    records = [{"x": np.float32(k), "deep": (k, [f"#{k}"])} for k in range(16)]
    (first, _) = run(records, 8, sharding=SHARDINGS["data"], num_workers=1)
    assert isinstance(first["x"], jax.Array)
    assert isinstance(first["deep"][0], jax.Array)
    assert first["deep"][1][0].tolist() == [f"#{k}" for k in range(8)]


def test_padding_is_placed_with_its_mask():
    batches = run(rows(20), 16, last_batch="pad", sharding=SHARDINGS["data"])
    masks = [np.asarray(batch["mask"]) for batch in batches]
    assert [mask.sum() for mask in masks] == [16, 4]
    assert batches[1]["mask"].sharding == SHARDINGS["data"]
    assert np.asarray(batches[1]["index"])[:4].tolist() == [16, 17, 18, 19]


def test_placed_batches_have_the_bytes_of_those_on_the_host():
    placed = run(rows(64), 16, shuffle=True, sharding=SHARDINGS["data"], num_workers=2)
    assert digest(placed) == digest(run(rows(64), 16, shuffle=True))


def test_state_speaks_of_delivered_batches_not_of_those_on_the_devices():
    options = {"shuffle": True, "sharding": SHARDINGS["data"], "device_batches": 3}
    with feeder.DataLoader(rows(80), 8, num_workers=2, **options) as loader:
        whole = [np.asarray(batch["index"]).tolist() for batch in loader]
        batches = iter(loader)
        for step in range(4):
            assert batches.get_state()["step"] == step
            next(batches)
        saved = batches.get_state()
        again = iter(loader)
        again.set_state(saved)
        assert [np.asarray(batch["index"]).tolist() for batch in again] == whole[4:]


@WORKERS
def test_a_leaf_without_rows_is_an_error_at_its_batch_and_names_it(num_workers):
    def collate(records):
        return {"x": np.stack(records), "mean": np.mean(records)}

    with feeder.DataLoader(
        list(np.arange(16.0)),
        8,
        collate=collate,
        sharding=SHARDINGS["data"],
        num_workers=num_workers,
    ) as loader:
        with pytest.raises(
            ValueError,
            match=r"^every leaf of a batch must have rows to be placed, got a single "
            r"value at batch\['mean'\]$",
        ):
            next(iter(loader))


@pytest.mark.parametrize("name", ["data", "replicated"])
def test_surplus_rows_are_refused_not_dropped(name):
    def double(batch):
        return np.concatenate([batch, batch])

    with feeder.DataLoader(
        np.arange(16.0), 8, batch_transforms=[double], sharding=SHARDINGS[name]
    ) as loader:
        with pytest.raises(
            ValueError,
            match=r"^every leaf of a batch must have 8 rows on this process to be placed, got 16 "
            r"in batch$",
        ):
            next(iter(loader))


def test_a_leaf_that_a_sharding_cannot_cut_is_named_at_construction():
    mesh = Mesh(DEVICES.reshape(4, 2), ("data", "model"))
    columns = NamedSharding(mesh, P("data", "model"))
    message = (
        r"^`sharding` must cut batch\['image'\], whose shape is \(8, 3, 4\), evenly, got dimension "
        r"1, of size 3, over mesh axis 'model' of size 2; put None there$"
    )
    with pytest.raises(ValueError, match=message):
        feeder.DataLoader(rows(16), 8, sharding=columns, num_workers=2)
    message = (
        r"^`sharding` must have a PartitionSpec of at most 1 entries for batch\['index'\], whose "
        r"shape is \(8,\), got (PartitionSpec|P)\('data', 'model'\); give that leaf its own, with "
        r"a dict of shardings in the form of the batch$"
    )
    source = {"index": np.arange(16), "x": np.zeros((16, 4))}
    with pytest.raises(ValueError, match=message):
        feeder.DataLoader(source, 8, sharding=columns)
    feeder.DataLoader(source, 8, sharding={"index": NamedSharding(mesh, P("data")), "x": columns})


@WORKERS
def test_a_leaf_that_no_longer_fits_is_named_at_its_batch(num_workers):
    mesh = Mesh(DEVICES.reshape(4, 2), ("data", "model"))

    def shrink(index):
        return np.zeros(4 if index < 8 else 3)

    options = {"transforms": [shrink], "num_workers": num_workers}
    sharding = NamedSharding(mesh, P("data", "model"))
    with feeder.DataLoader(list(range(16)), 8, sharding=sharding, **options) as loader:
        batches = iter(loader)
        next(batches)
        message = (
            r"^`sharding` must cut batch, whose shape is \(8, 3\), evenly, got dimension 1, of "
        )
        with pytest.raises(ValueError, match=message):
            next(batches)


def test_what_a_record_raises_at_construction_is_raised_at_its_batch():
    sharding = NamedSharding(Mesh(DEVICES.reshape(4, 2), ("data", "model")), P("data", "model"))

    def broken(record):
        raise LookupError("not here")

    loader = feeder.DataLoader(rows(16), 8, transforms=[broken], sharding=sharding)
    with pytest.raises(LookupError, match=r"^not here$"):
        next(iter(loader))


def test_importing_feeder_and_loading_on_the_host_import_no_jax():
    code = (
        "import sys, numpy, feeder\n"
        "loader = feeder.DataLoader(numpy.arange(8), 4, num_workers=1)\n"
        "assert len(list(loader)) == 2\n"
        "assert 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


@WORKERS
def test_a_pytree_prefix_of_shardings_places_each_leaf_its_own_way(num_workers):
    mesh = Mesh(DEVICES.reshape(4, 2), ("data", "model"))
    data, both = NamedSharding(mesh, P("data")), NamedSharding(mesh, P("data", "model"))
    everywhere = NamedSharding(mesh, P())
    records = [
        {"x": np.arange(4.0) + k, "deep": (np.int32(k), {"y": np.float32(k)})} for k in range(32)
    ]
    sharding = {"x": both, "deep": (everywhere, data)}
    got = run(records, 8, sharding=sharding, num_workers=num_workers, last_batch="pad")
    for batch, wanted in zip(got, run(records, 8, last_batch="pad"), strict=True):
        assert batch["x"].sharding == both
        assert batch["deep"][0].sharding == everywhere
        assert batch["deep"][1]["y"].sharding == data
        assert digest([batch]) == digest([jax.tree.map(jnp.asarray, wanted)])
    spec = feeder.DataLoader(records, 8, sharding=sharding).element_spec
    assert (spec["x"].shape, spec["x"].sharding) == ((8, 4), both)


@pytest.mark.parametrize("name", ["trailing axis", "replicated", "one device"])
def test_the_mask_lies_as_the_rows_do(name):
    source = {"x": np.zeros((20, 4, 2), np.float32)}
    mesh = Mesh(DEVICES.reshape(4, 2), ("data", "model"))
    for sharding in (SHARDINGS[name], {"x": SHARDINGS[name]}):
        *_, last = run(source, 16, last_batch="pad", sharding=sharding)
        assert np.asarray(last["mask"]).sum() == 4
        if name == "trailing axis":
            assert last["mask"].sharding == NamedSharding(mesh, P("data"))
    bare = run(source["x"], 16, last_batch="pad", sharding=SHARDINGS[name])
    assert np.asarray(bare[-1][1]).sum() == 4


def test_the_usual_sharding_in_one_word():
    grid = Mesh(DEVICES.reshape(4, 2), ("data", "model"))
    assert feeder.batch_sharding() == NamedSharding(Mesh(DEVICES, ("data",)), P("data"))
    assert feeder.batch_sharding(grid) == NamedSharding(grid, P("data"))
    assert feeder.batch_sharding(grid, "model") == NamedSharding(grid, P("model"))
    both = ("data", "model")
    assert feeder.batch_sharding(grid, both) == NamedSharding(grid, P(both))
    message = r"^`axis` must be of the axes of `mesh`, \('data', 'model'\), got 'batch'$"
    with pytest.raises(ValueError, match=message):
        feeder.batch_sharding(grid, "batch")


def test_the_batch_must_be_divided_by_every_sharding_of_the_tree():
    mesh = Mesh(DEVICES.reshape(4, 2), ("data", "model"))
    sharding = {"image": NamedSharding(mesh, P("data")), "index": NamedSharding(mesh, P("model"))}
    message = (
        r"^`batch_size` must be a multiple of 4, the number of shards that `sharding` cuts the "
        r"batch into \(mesh axis 'data' of size 4 and mesh axis 'model' of size 2\), got 6; use "
        r"4 or 8$"
    )
    with pytest.raises(ValueError, match=message):
        feeder.DataLoader(rows(16), 6, sharding=sharding)


def test_a_tree_of_shardings_that_does_not_fit_the_batch_is_refused():
    sharding = {"image": SHARDINGS["data"]}
    with feeder.DataLoader(rows(16), 8, sharding=sharding) as loader:
        message = (
            r"^`sharding` must be a jax.sharding.Sharding or a pytree prefix of the batch, whose "
            r"keys are \['image', 'index'\], got \['image'\]; give one for each key$"
        )
        with pytest.raises(ValueError, match=message):
            next(iter(loader))
    with feeder.DataLoader(rows(16), 8, sharding=(SHARDINGS["data"],)) as loader:
        message = r"^`sharding` must be .*, which has the structure .*, got PyTreeSpec\(\(\*,\)\)$"
        with pytest.raises(ValueError, match=message):
            next(iter(loader))
    with pytest.raises(TypeError, match=r"^`sharding\['image'\]` must be a jax.sharding.Sharding"):
        feeder.DataLoader(rows(16), 8, sharding={"image": P("data")})


def test_shardings_that_leave_something_open_are_refused():
    mesh = Mesh(DEVICES, ("data",))
    open_spec = NamedSharding(mesh, P(P.UNCONSTRAINED))
    with pytest.raises(
        ValueError, match=r"^`sharding` must say how every axis is cut, got .*; use N"
    ):
        feeder.DataLoader(rows(16), 8, sharding=open_spec)
    abstract = NamedSharding(mesh.abstract_mesh, P("data"))
    with pytest.raises(TypeError, match=r"^`sharding\['x'\]` must have a mesh of devices, got "):
        feeder.DataLoader(rows(16), 8, sharding={"x": abstract})


def test_a_sharding_is_described_alike_however_it_is_written():
    mesh = Mesh(DEVICES.reshape(4, 2), ("data", "model"))
    written = [P("data"), P("data", None), P(("data",)), P("data", None, None)]
    assert len({described("sharding", NamedSharding(mesh, spec)) for spec in written}) == 1
    other = [
        NamedSharding(mesh, P("model")),
        NamedSharding(Mesh(DEVICES.reshape(4, 2)[::-1], ("data", "model")), P("data")),
        SingleDeviceSharding(DEVICES[0]),
    ]
    assert len({described("sharding", each) for each in other}) == 3


@WORKERS
def test_integers_that_do_not_fit_what_jax_keeps_are_an_error_that_names_them(num_workers):
    source = {"id": np.arange(16) + 2**31 - 9, "small": np.arange(16)}
    sharding = SHARDINGS["data"]
    with feeder.DataLoader(source, 8, sharding=sharding, num_workers=num_workers) as loader:
        batches = iter(loader)
        assert np.asarray(next(batches)["id"]).tolist() == list(range(2**31 - 9, 2**31 - 1))
        message = (
            r"^batch\['id'\] must fit the 32 bits that JAX keeps of int64, got 2147483654; set "
            r"jax_enable_x64, or make it smaller in `transforms`$"
        )
        with pytest.raises(ValueError, match=message):
            next(batches)
