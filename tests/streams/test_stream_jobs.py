"""Streams in real jobs of several processes: each record read once, and the same steps for all."""

import json
from pathlib import Path

import pytest

import feeder
from tests.jobs import last_lines, run_job
from tests.streams.shards import Stateful, ids_of, run, stream

LENGTHS_OF_A_JOB = [40, 37, 44, 12, 39, 41, 25, 48]

SCRIPT = """
    import warnings
    sys.path.insert(0, sys.argv[4])
    options, steps, states = json.loads(sys.argv[5]), int(sys.argv[6]), json.loads(sys.argv[7])
    log = sys.argv[8] + f".{count}.{index}"
    from tests.streams.shards import Plain, Stateful, stream
    if options.pop("shuffle", False):
        options["shuffle"] = feeder.WindowShuffle(32)
    kind = Plain if options.pop("plain", False) else Stateful
    mesh = Mesh(devices, ("data",))
    source = stream(LENGTHS, kind, log, cycle_length=options.pop("cycle_length", None))
    warnings.simplefilter("ignore", RuntimeWarning)
    failing = [number for number in (options.pop("fails_at", -1),) if index == 1 and number >= 0]
    def once(record):
        if failing and record["id"] == failing[0]:
            failing.clear()
            raise KeyError("once")
        return record
    def advanced(batches):
        try:
            return next(batches, None)
        except KeyError:
            return next(batches, None)
    got = []
    total = jax.jit(lambda batch: batch["x"].sum())  # a collective: nobody may take a step alone
    with feeder.DataLoader(
        source, 24, sharding=NamedSharding(mesh, P("data")), transforms=[once], **options
    ) as loader, iter(loader) as batches:
        if states:
            batches.set_state(states)
        while (batch := advanced(batches)) is not None:
            total(batch).block_until_ready()
            mask = batch.get("mask")
            rows = {}
            for shard in batch["id"].addressable_shards:
                rows[shard.index[0].start or 0] = np.asarray(shard.data).tolist()
            got.append(sum((rows[start] for start in sorted(rows)), []))
            if len(got) == steps:
                break
        state = batches.get_state()
    print(json.dumps({"got": got, "state": state}))
""".replace("LENGTHS", repr(LENGTHS_OF_A_JOB))


def job(count, log, steps=-1, states=None, **options):
    arguments = [
        str(Path(__file__).parents[2]),
        json.dumps(options),
        str(steps),
        json.dumps(states),
        str(log),
    ]
    results = [json.loads(line) for line in last_lines(run_job(SCRIPT, count, *arguments))]
    steps_of = {len(result["got"]) for result in results}
    assert len(steps_of) == 1  # all took the same steps
    joined = [sum(parts, []) for parts in zip(*(result["got"] for result in results), strict=True)]
    return joined, [result["state"] for result in results]


def expected(**options):
    options.pop("plain", None)
    if options.pop("shuffle", False):
        options["shuffle"] = feeder.WindowShuffle(32)
    source = stream(LENGTHS_OF_A_JOB, Stateful, cycle_length=options.pop("cycle_length", None))
    return ids_of(run(source, 24, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"last_batch": "pad", "num_epochs": 2, "num_workers": 2},
        {"shuffle": True, "num_epochs": 2},
        {"last_batch": "rollover", "num_epochs": 2, "plain": True, "cycle_length": 4},
    ],
    ids=["pad", "shuffle", "rollover"],
)
def test_processes_share_a_stream_and_take_the_same_steps(options, tmp_path):
    log = tmp_path / "opened"
    got, _ = job(2, log, **options)
    assert got == expected(**options)
    logs = [Path(f"{log}.2.{index}").read_text().splitlines() for index in range(2)]
    opened = [{tuple(line.split()[1:3]) for line in lines} for lines in logs]
    if "cycle_length" not in options:
        # Only what one has left, once the other has read all of its own, is read by both.
        assert len(opened[0] & opened[1]) <= 2 * len(LENGTHS_OF_A_JOB) // 2
        assert len(opened[0] | opened[1]) == 2 * len(LENGTHS_OF_A_JOB)


def test_a_process_that_tries_a_batch_again_still_agrees_with_the_others(tmp_path):
    # The last record of lane 6 is in the very batch in which that lane ends.
    options = {"last_batch": "pad", "fails_at": 6024}
    got, _ = job(2, tmp_path / "opened", **options)
    del options["fails_at"]
    assert got == expected(**options)


def test_a_checkpoint_of_two_processes_opens_on_one_and_on_three(tmp_path):
    log = tmp_path / "opened"
    options = {"last_batch": "pad", "num_epochs": 2, "shuffle": True}
    first, states = job(2, log, 3, **options)
    # Before any shard has ended, each process knows those that it has read.
    known = [{entry[0] for entry in state["draws"]["shards"]} for state in states]
    assert not known[0] & known[1]
    second, (state,) = job(1, log, 6, states, **options)
    third, _ = job(3, log, -1, [state], **options)
    assert first + second + third == expected(**options)
    # One state alone is enough: what it does not know of is read again.
    alone, _ = job(1, log, -1, states[1], **options)
    assert alone == expected(**options)[3:]


def test_fewer_shards_than_processes_are_read_by_all_of_them(tmp_path):
    options = {"cycle_length": 1, "last_batch": "pad"}
    got, _ = job(2, tmp_path / "opened", **options)
    assert got == expected(**options)
