"""Real jobs of two and three processes: every process loads its rows alone, and they agree."""

import json
from itertools import islice

import numpy as np
import pytest

import feeder
from tests.jobs import last_lines, run_job

TOPOLOGIES = """
    flat = Mesh(devices, ("data",))
    grid = Mesh(devices.reshape(count, 4), ("data", "model"))
    across = Mesh(devices.reshape(count, 4).T, ("data", "model"))  # "model" crosses processes
    mixed = Mesh(devices.reshape(count, 4).T.reshape(-1), ("data",))
    shardings = {
        "data": NamedSharding(flat, P("data")),
        "replicated": NamedSharding(flat, P()),
        "two axes": NamedSharding(grid, P("data", "model")),
        "batch over both": NamedSharding(grid, P(("data", "model"))),
        "model across processes": NamedSharding(across, P("data", "model")),
        "interleaved": NamedSharding(mixed, P("data")),
    }
    source = {"x": np.arange(60 * 12, dtype=np.float32).reshape(60, 12)}
    total = jax.jit(lambda x, w: jnp.einsum("rc,r->", x, w))
    found = {}
    for name, sharding in shardings.items():
        read = []

        def note(record):
            read.append(int(record["x"][0]) // 12)
            return record

        options = {"shuffle": True, "seed": 3, "num_epochs": 2}
        loader = feeder.DataLoader(
            source, 24, transforms=[note], sharding={"x": sharding}, debug_checks=True, **options
        )
        read.clear()
        plain = feeder.DataLoader(source, 24, process_index=0, process_count=1, **options)
        sums, wanted = [], []
        weights = np.arange(1, 25, dtype=np.float32)
        for batch, whole in zip(loader, plain, strict=True):
            assert batch["x"].shape == (24, 12) and batch["x"].sharding == sharding
            for shard in batch["x"].addressable_shards:
                assert np.array_equal(np.asarray(shard.data), whole["x"][shard.index])
            sums.append(float(total(batch["x"], weights)))
            wanted.append(float(np.einsum("rc,r->", whole["x"], weights)))
        assert np.allclose(sums, wanted, rtol=1e-6), (sums, wanted)
        found[name] = [len(read), sums, iter(loader).get_state()]
    print(json.dumps(found))
"""


@pytest.mark.parametrize("num_processes", [2, 3])
def test_every_topology_holds_the_same_global_batches(num_processes):
    found = list(map(json.loads, last_lines(run_job(TOPOLOGIES, num_processes))))
    for name in found[0]:
        assert all(each[name][1:] == found[0][name][1:] for each in found)  # sums and state
        whole = name in ("replicated", "model across processes")
        rows = 4 * 24 // (1 if whole else num_processes)
        assert [each[name][0] for each in found] == [rows] * num_processes, name  # each row once


RESUMED = """
    mesh = Mesh(devices, ("data",))
    source = {"x": np.arange(100, dtype=np.float32)}
    loader = feeder.DataLoader(
        source, 24, shuffle=True, seed=5, num_epochs=None, num_workers=2,
        sharding=NamedSharding(mesh, P("data")),
    )
    weights = np.arange(1, 25, dtype=np.float32)
    total = jax.jit(lambda x: (x * weights).sum())
    with loader, iter(loader) as batches:
        if sys.argv[4] != "null":
            batches.set_state(json.loads(sys.argv[4]))
        sums = [float(total(next(batches)["x"])) for _ in range(7)]
        print(json.dumps([sums, batches.get_state()]))
"""


@pytest.mark.timeout(240)
def test_another_number_of_processes_goes_on_with_the_same_global_sequence():
    state, resumed = None, []
    for num_processes in (2, 1, 3):
        found = list(
            map(json.loads, last_lines(run_job(RESUMED, num_processes, json.dumps(state))))
        )
        assert all(each == found[0] for each in found)
        sums, state = found[0]
        resumed += sums
    source = {"x": np.arange(100, dtype=np.float32)}
    undisturbed = feeder.DataLoader(source, 24, shuffle=True, seed=5, num_epochs=None)
    weights = np.arange(1, 25, dtype=np.float32)
    expected = [float((batch["x"] * weights).sum()) for batch in islice(undisturbed, 21)]
    assert resumed == expected


DIFFERENT = """
    class Unseeded:
        def __init__(self):
            self.rng = np.random.default_rng()  # each process has its own

        def __iter__(self):
            return iter(self.rng.permutation(48).tolist())

    def attempt(name, sharding=None, **options):
        arguments = {"source": np.arange(48), "batch_size": 24, **options}
        sharding = sharding or NamedSharding(Mesh(devices, ("data",)), P("data"))
        try:
            feeder.DataLoader(sharding=sharding, **arguments)
        except (feeder.FeederError, ValueError, TypeError) as error:
            told[name] = [type(error).__name__, str(error)]
            if isinstance(error, feeder.ProcessMismatchError):
                told[name].append({n: list(v.items()) for n, v in error.differences.items()})
        else:
            told[name] = None

    told, last = {}, index == count - 1
    attempt("same")
    attempt("source", source=np.arange(50 if last else 48))
    attempt("size and seed", batch_size=48 if last else 24, seed=index)
    attempt("workers", num_workers=index)
    attempt("empty", source=np.arange(0 if last else 48))
    attempt("sharding", sharding=42 if last else None)
    attempt("unseeded", sampler=Unseeded())
    attempt("transforms", transforms=[] if last else [np.negative])
    attempt("still the same")
    print(json.dumps(told))
"""


def head(number):
    return (
        "the processes of a job must make the same loaders, in the same order, got for loader "
        f"number {number}:\n"
    )


@pytest.mark.parametrize("num_processes", [2, 3])
def test_processes_that_differ_are_an_error_on_every_one_of_them(num_processes):
    found = list(map(json.loads, last_lines(run_job(DIFFERENT, num_processes))))
    last = num_processes - 1
    tail = (
        "\nGive every process the same arguments and the same data; a loader that is one process's "
        "own has a sharding over its own devices, or `process_index=0, process_count=1`."
    )
    for number, told in enumerate(found):
        assert told["same"] is None
        assert told["still the same"] is None
        assert told["workers"] is None
        assert told["source"] == [
            "ProcessMismatchError",
            f"{head(2)}  `num_records`: 48 on process 0, 50 on process {last}{tail}",
            {"num_records": [[0, 48], [last, 50]]},
        ]
        seeds = ", ".join(f"{each} on process {each}" for each in range(num_processes))
        assert told["size and seed"][1] == (
            f"{head(3)}  `batch_size`: 24 on process 0, 48 on process {last}\n"
            f"  `seed`: {seeds}{tail}"
        )
        empty = "`source` must hold 1 to 2**62 records, got 0"
        if number == last:
            assert told["empty"] == ["ValueError", empty]
        else:
            assert told["empty"][1] == (
                f"{head(5)}  process {last} could not make its loader: ValueError: {empty}{tail}"
            )
        assert "`transforms`: ['negative'] on process 0, [] on" in told["transforms"][1]
        assert "`first items of the sampler`: " in told["unseeded"][1]
        wrong = "TypeError: `sharding` must be a jax.sharding.Sharding, got 42; use"
        if number == last:
            assert f"{told['sharding'][0]}: {told['sharding'][1]}".startswith(wrong)
        else:
            assert f"process {last} could not make its loader: {wrong}" in told["sharding"][1]


DIVERGED = """
    def build(record):
        return record + (index if record % 7 == 5 else 0)  # not among the first records

    grid = Mesh(devices.reshape(2, 4).T, ("data", "model"))
    loader = feeder.DataLoader(
        np.arange(48), 12, transforms=[build], sharding=NamedSharding(grid, P("data")),
        debug_checks=True,
    )
    batches = iter(loader)
    told = []
    try:
        next(batches)
    except feeder.ProcessMismatchError as error:
        told.append([str(error), error.step, list(error.differences.items())])
    batches.set_state(iter(loader).get_state() | {"step": index, "position": 12 * index})
    try:
        next(batches)
    except feeder.ProcessMismatchError as error:
        told.append([str(error), error.step])
    print(json.dumps(told))
"""


def test_debug_checks_find_rows_that_differ_between_processes_and_other_steps():
    for first, second in map(json.loads, last_lines(run_job(DIVERGED, 2))):
        assert first == [
            "rows that several processes hold must be the same on all, got batch of step 0 with "
            "other rows on processes 0 and 1: 5; make every record depend on nothing but its index "
            "and the Generator of a RandomMap",
            0,
            [["batch", {"0": [5], "1": [5]}]],
        ]
        assert second == [
            "the processes of a job must be at the same batch, got `step` 0 on process 0 and 1 on "
            "process 1; restore the same state on all of them, and give all of them the same data",
            second[1],
        ]


UNLIKE = """
    def attempt(name, source, restored=0, **options):
        sharding = feeder.batch_sharding()
        try:
            loader = feeder.DataLoader(source, 8, sharding=sharding, **options)
            batches = iter(loader)
            state = batches.get_state()
            batches.set_state({**state, "step": restored, "position": 8 * restored})
            next(batches)
        except feeder.ProcessMismatchError as error:
            told[name] = str(error)

    told, rows = {}, np.arange(48)
    attempt("same", {"x": rows}, restored=2)
    attempt("dtype", {"x": rows.astype(np.float32 if index else np.int32)})
    attempt("key", {"y" if index else "x": rows})
    attempt("state", {"x": rows}, restored=3 * index)
    attempt("order of files", {"x": rows[::-1] if index else rows}, debug_checks=True)
    attempt("still the same", {"x": rows})
    print(json.dumps(told))
"""


def test_other_leaves_other_states_and_other_data_are_errors_without_any_row_in_common():
    first, second = map(json.loads, last_lines(run_job(UNLIKE, 2)))
    assert first == second
    assert set(first) == {"dtype", "key", "state", "order of files"}
    must = "the processes of a job must be at the same batch, got "
    assert first["dtype"].startswith(
        f"{must}`leaves` {{\"batch['x']\": 'int32[rows]'}} on process 0"
    )
    assert first["key"].startswith(f"{must}`leaves` {{\"batch['x']\": ")
    assert first["state"].startswith(f"{must}`step` 0 on process 0 and 3 on process 1; restore")
    assert "`first records`: {\"batch['x']\": " in first["order of files"]
