"""The sentence that names the bottleneck: a pure function of a `Stats`, by a table."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.monitor.stats import STAGES, StageStats, Stats

COUNT = 100


def measured(step_ms, stages_ms, **fields):
    """What 100 batches of the same times would give; the wait covers what it must."""
    stages = {
        stage: StageStats(mean_s=stages_ms.get(stage, 0) / 1e3, max_s=stages_ms.get(stage, 0) / 1e3)
        for stage in STAGES
    }
    every = step_ms + stages_ms.get("wait", 0)
    known = {"batches": COUNT + 1, "num_cpus": 8, "max_memory_bytes": 2**30, "window": 8}
    found = Stats(stages=stages, recent_batches=COUNT, recent_s=every * COUNT / 1e3)
    return replace(found, **{**known, **fields})


HERE = {"worker_type": "here", "num_workers": 0}
TWO = {"worker_type": "process", "num_workers": 2, "worker_cpus": 2.0}
THREADS = {"worker_type": "thread", "num_workers": 2}
SLOW = {"read": 4, "transform": 81, "collate": 15}
KEEP_UP = "The workers cannot keep up: the loop waits for data "

TABLE = {
    "nothing was delivered": (Stats(), "No batch was delivered yet."),
    "too few": (
        replace(measured(1, {}, **TWO), batches=4, recent_batches=3, first_batch_s=0.25),
        "Too few batches to say: 3 since the first one, which took 250 ms (workers start then); "
        "ask again after 10.",
    ),
    "the step": (
        measured(100, {"wait": 2, "transform": 50}, **TWO),
        "Your step is the bottleneck: data waits for it, and it waits for data 2 % of the time; "
        "nothing to change.",
    ),
    "built here": (
        measured(25, {"wait": 100, **SLOW}, **HERE),
        "The loop waits for data 80 % of the time, while batches are built in this process, and "
        "transform takes 81 % of that; raise `num_workers` from 0 to about 5.",
    ),
    "built here, on one processor": (
        measured(100, {"wait": 100, **SLOW}, num_cpus=1, **HERE),
        "The loop waits for data 50 % of the time, while batches are built in this process, and "
        "transform takes 81 % of that: `num_workers=1` would build them during your step, but "
        "there is one processor; make `transforms` cheaper: whole batches at once in "
        "`batch_transforms`, or the part without randomness once, before training.",
    ),
    "built here in no time": (
        measured(0.001, {"wait": 0.05, "read": 0.045}, **HERE),
        "The loop waits for data 98 % of the time, since it does little else: a batch is built in "
        "45 µs, which no worker would do sooner; nothing to change.",
    ),
    "too few workers": (
        measured(20, {"wait": 30, "wait_worker": 30, **SLOW}, **TWO),
        KEEP_UP + "60 % of the time, and transform takes 81 % of theirs; raise `num_workers` from "
        "2 to about 6.",
    ),
    "too few processors": (
        measured(20, {"wait": 30, "wait_worker": 30, **SLOW}, **TWO, num_cpus=2),
        KEEP_UP + "60 % of the time, and transform takes 81 % of theirs; since all 2 processors "
        "are at it, make `transforms` cheaper: whole batches at once in `batch_transforms`, or "
        "the part without randomness once, before training.",
    ),
    "more workers than processors, for reads that wait": (
        measured(
            20,
            {"wait": 30, "wait_worker": 30, "read": 96, "collate": 4},
            **{**TWO, "worker_cpus": 0.1, "num_cpus": 2},
        ),
        KEEP_UP + "60 % of the time, and read takes 96 % of theirs; raise `num_workers` from 2 to "
        "about 6, or read less: `shuffle=feeder.BlockShuffle(…)` reads neighbours together.",
    ),
    "more workers than processors, for transforms that wait": (
        measured(
            20,
            {"wait": 30, "wait_worker": 30, **SLOW},
            **{**TWO, "worker_cpus": 0.1, "num_cpus": 2},
        ),
        KEEP_UP + "60 % of the time, and transform takes 81 % of theirs; raise `num_workers` from "
        "2 to about 6.",
    ),
    "threads that wait": (
        measured(
            20,
            {"wait": 30, "wait_worker": 30, **SLOW},
            **{**THREADS, "worker_cpus": 0.1, "num_cpus": 2},
        ),
        KEEP_UP + "60 % of the time, and transform takes 81 % of theirs; raise `num_workers` from "
        "2 to about 6.",
    ),
    "reads that compute": (
        measured(
            20,
            {"wait": 30, "wait_worker": 30, "read": 96, "collate": 4},
            **{**TWO, "num_cpus": 2},
        ),
        KEEP_UP + "60 % of the time, and read takes 96 % of theirs; since all 2 processors are at "
        "it, read less: `shuffle=feeder.BlockShuffle(…)` reads neighbours together, and a source "
        "with `read(indices)` reads a batch at once.",
    ),
    "threads that compute": (
        measured(20, {"wait": 30, "wait_worker": 30, **SLOW}, **THREADS),
        KEEP_UP + "60 % of the time, and transform takes 81 % of theirs; threads take turns at "
        'Python code: set `worker_type="process"`, with `num_workers=6`.',
    ),
    "threads that read": (
        measured(20, {"wait": 30, "wait_worker": 30, "read": 100}, **THREADS),
        KEEP_UP + "60 % of the time, and read takes 100 % of theirs; raise `num_workers` from 2 to "
        "about 6, or read less: `shuffle=feeder.BlockShuffle(…)` reads neighbours together.",
    ),
    "one slow batch": (
        measured(20, {"wait": 20, "wait_worker": 20, **SLOW}, late_s=0.015, can_split=True, **TWO),
        "The loop waits for data 50 % of the time, most of it for single batches that take much "
        "longer than others (up to 20 ms) while later ones are ready; set `chunks_per_batch=2`, "
        "so that workers share it.",
    ),
    "one slow batch that cannot be split": (
        measured(20, {"wait": 20, "wait_worker": 20, **SLOW}, late_s=0.015, **TWO),
        "The loop waits for data 50 % of the time, most of it for single batches that take much "
        "longer than others (up to 20 ms) while later ones are ready; raise `prefetch_batches` "
        "above 8, so that more are ready by then.",
    ),
    "kept batches": (
        measured(
            20,
            {"wait": 20, "wait_worker": 20, "transform": 20},
            slot_bytes=2**20,
            slots_bytes=2**30,
            **TWO,
        ),
        "The loop waits for data 50 % of the time, and workers are at it 25 % of the time: the "
        "batches that you keep fill `max_memory_bytes` = 1,073,741,824; keep fewer, or raise it.",
    ),
    "little before the workers": (
        measured(20, {"wait": 20, "wait_worker": 20, "transform": 20}, **{**TWO, "window": 1}),
        "The loop waits for data 50 % of the time, though workers are at it 25 % of the time: they "
        "have too little before them; raise `prefetch_batches` from 1.",
    ),
    "batches cheaper than their way": (
        measured(0.05, {"wait": 0.2, "wait_worker": 0.15, "read": 0.1}, **TWO),
        "The loop waits for data 80 % of the time, though workers are at it 20 % of the time: a "
        "batch is built in 100 µs, less than handing it over costs; raise `batch_size`, or set "
        "`num_workers=0`.",
    ),
    "placing": (
        measured(20, {"wait": 20, "place": 18, "read": 5}, placed=True, **TWO),
        "The loop waits for data 50 % of the time, most of it while batches are placed on the "
        "devices, 18 ms for each: raise `device_batches`, leave `pin_memory` on, and make batches "
        "smaller or of fewer leaves (as uint8, to be widened on the device).",
    ),
    "handing over": (
        measured(0.01, {"wait": 0.05, "wait_worker": 0.02, "read": 0.02}, **TWO),
        "The loop waits for data 83 % of the time, most of it while batches are handed over, 30 µs "
        "for each: your step takes no longer than that; raise `batch_size`, so that there are "
        "fewer of them.",
    ),
    "unpickling": (
        measured(20, {"wait": 20, "place": 18, "read": 5}, **TWO),
        "The loop waits for data 50 % of the time, most of it while batches are handed over, 20 ms "
        "for each: leaves that are no numbers are pickled; make arrays of them.",
    ),
    "a callable": (
        measured(20, {"wait": 20, "call": 18, "read": 19}, **TWO),
        "The loop waits for data 50 % of the time, most of it while the callable of the "
        "FromCallable is called in this process, which takes 18 ms for a batch: make it cheaper, "
        "or let it give functions that return the records, which workers then call.",
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_the_sentence_names_the_bottleneck_and_the_argument_to_change(case):
    stats, expected = TABLE[case]
    assert stats.bottleneck == expected


times = st.floats(0, 1e4)


@given(
    times,
    st.fixed_dictionaries(dict.fromkeys(STAGES, times)),
    st.sampled_from(["here", "process", "thread"]),
    st.integers(1, 128),
    st.integers(1, 128),
    st.none() | st.floats(0, 200),
    times,
)
def test_there_is_one_sentence_whatever_was_measured(step, stages, kind, workers, cpus, used, late):
    number = 0 if kind == "here" else workers
    stats = measured(step, stages, worker_type=kind, num_workers=number, num_cpus=cpus)
    stats = replace(stats, worker_cpus=used, late_s=late)
    sentence = stats.bottleneck
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert sentence in str(stats)


@given(st.floats(0.1, 1e3), st.floats(0.1, 1e4), st.integers(1, 64), st.integers(1, 64))
def test_no_more_workers_than_processors_are_advised_for_what_computes(step, build, workers, cpus):
    stages = {"wait": step, "wait_worker": step, "transform": build}
    stats = measured(step, stages, worker_type="process", num_workers=workers, num_cpus=cpus)
    _, found, number = stats.bottleneck.partition(" to about ")
    if found:
        assert workers < int(number.rstrip(".")) <= cpus
