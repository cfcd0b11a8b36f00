"""Batches per second from a stream of shards: feeder beside PyTorch's loaders and Grain.

    python benchmarks/streams.py [--seconds 1] [--rounds 5] [--only TEXT]

64 shards of 20 000 records (16 float32 and a label), batches of 256, all read by the same
iterators, which have a state. "Mixed" batches take records of all shards in turn, others are of
one shard at a time; "np" joins records by np.concatenate, else the loader does in its own way.
Loaders take turns in process groups of their own, as in throughput.py; a figure is the median of
the rounds, ratios are taken within a round. CPU is that of the whole group: it tells costs apart
where others use the processors too. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
from throughput import WARM_UP_SHARE, Served

SHARDS, RECORDS, BATCH, WORKERS = 64, 20_000, 256, 2
MID_EPOCH = SHARDS * RECORDS // BATCH // 2  # the step that is resumed from
VECTORS = np.random.default_rng(0).standard_normal((RECORDS, 16)).astype(np.float32)
UNEQUAL = np.random.default_rng(1).integers(1000, 3001, SHARDS).tolist()
EQUAL = [-(-sum(UNEQUAL) // SHARDS)] * SHARDS

Turn = Callable[[float], float]
"""Measures for so many seconds: batches per second; or what something takes: milliseconds."""


class Reader:
    """The records of one shard, in order; for ever, where it is told so."""

    def __init__(self, shard: int, length: int = RECORDS, endless: bool = False) -> None:
        self._first = shard * RECORDS
        self._length, self._endless = length, endless
        self._at = 0

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> dict[str, Any]:
        at = self._at
        if at >= self._length:
            if not self._endless:
                raise StopIteration
            at = 0
        self._at = at + 1
        return {"x": VECTORS[at], "label": self._first + at}

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]


def joined(records: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "x": np.concatenate([record["x"] for record in records]).reshape(len(records), -1),
        "label": np.array([record["label"] for record in records]),
    }


def by_shard(shards: range) -> Iterator[Any]:
    for shard in itertools.cycle(shards):
        yield from Reader(shard)


def mixed(shards: range) -> Iterator[Any]:
    readers = [Reader(shard, endless=True) for shard in shards]
    return map(next, itertools.cycle(readers))


class Mixed:
    """What `mixed` gives, with the states of all shards."""

    def __init__(self, shards: range) -> None:
        self._readers = [Reader(shard, endless=True) for shard in shards]
        self._turn = -1

    def __next__(self) -> Any:
        self._turn = (self._turn + 1) % len(self._readers)
        return next(self._readers[self._turn])

    def state_dict(self) -> dict[str, Any]:
        return {"turn": self._turn, "shards": [reader.state_dict() for reader in self._readers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._turn = state["turn"]
        for reader, of in zip(self._readers, state["shards"], strict=True):
            reader.load_state_dict(of)


def flow(batches: Iterator[Any], after: Callable[[], object] | None = None) -> Turn:
    def take_for(seconds: float) -> float:
        count, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            next(batches)
            if after:
                after()
            count += 1
        return count / elapsed

    next(batches)
    return lambda seconds: (take_for(seconds * WARM_UP_SHARE), take_for(seconds))[1]


def by_hand() -> Turn:
    """What one process can do at best: read, join, deliver nothing."""
    records = mixed(range(SHARDS))
    return flow(joined(list(itertools.islice(records, BATCH))) for _ in itertools.count())


def feeder_loader(
    lengths: list[int] | None = None, block: int | None = None, **options: Any
) -> Any:
    import feeder

    def open_shard(shard: int, _epoch: int, _state: Any) -> Reader:
        return Reader(shard, RECORDS if lengths is None else lengths[shard])

    stream = feeder.Stream(open_shard, SHARDS, block_length=block)
    return feeder.DataLoader(stream, BATCH, **{"num_workers": WORKERS, **options})


def feeder_flow(states: bool = False, **options: Any) -> Turn:
    batches = iter(feeder_loader(num_epochs=None, **options))
    return flow(batches, batches.get_state if states else None)


def feeder_epoch(lengths: list[int], **options: Any) -> Turn:
    """Batches per second of an epoch, after the first of them."""

    def turn(_seconds: float) -> float:
        with feeder_loader(lengths, last_batch="keep", **options) as loader:
            batches = iter(loader)
            first, began = len(next(batches)["label"]), time.perf_counter()
            rest = sum(len(batch["label"]) for batch in batches)
            elapsed = time.perf_counter() - began
        assert first + rest == sum(lengths), f"{first + rest} records of {sum(lengths)}"
        return rest / BATCH / elapsed

    return turn


def feeder_at(state: Any) -> Any:
    loader = feeder_loader()
    batches = iter(loader)
    if state is not None:
        batches.set_state(state)
    return batches, batches.get_state, loader.close


def torch_loader(make: Callable[[range], Any], collate: Any = joined, **options: Any) -> Any:
    """A DataLoader or, told of snapshots, a StatefulDataLoader; shards are split by worker."""
    import torch.utils.data

    class Shards(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            worker: Any = torch.utils.data.get_worker_info()
            return make(range(worker.id, SHARDS, worker.num_workers))

    kind: Any = torch.utils.data.DataLoader
    if "snapshot_every_n_steps" in options:
        from torchdata.stateful_dataloader import StatefulDataLoader as kind  # noqa: N813
    ahead = {"num_workers": WORKERS, "persistent_workers": True, "prefetch_factor": 8}
    return kind(Shards(), BATCH, collate_fn=collate, **{**ahead, **options})


def torch_flow(*how: Any, states: bool = False, **options: Any) -> Turn:
    loader = torch_loader(*how, **options)
    return flow(iter(loader), loader.state_dict if states else None)


def torchdata_at(state: Any) -> Any:
    loader = torch_loader(Mixed, snapshot_every_n_steps=1)
    if state is not None:
        loader.load_state_dict(state)
    return iter(loader), loader.state_dict, lambda: None


def first_batch(begin: Callable[[Any], Any], step: int) -> Turn:
    """Milliseconds to the batch of a step, from making the loader on."""
    batches, save, end = begin(None)
    for _ in range(step):
        next(batches)
    state = save() if step else None
    end()

    def turn(_seconds: float) -> float:
        began = time.perf_counter()
        batches, _, end = begin(state)
        next(batches)
        ms = (time.perf_counter() - began) * 1e3
        end()
        return ms

    return turn


def grain_flow(num_workers: int, batch_fn: Any = None, batch_first: bool = False) -> Turn:
    """Grain's interleave of records; or of batches, each of one shard."""
    import grain
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # Grain's workers need parsed flags

    class Records(Reader, grain.DatasetIterator):
        get_state, set_state = Reader.state_dict, Reader.load_state_dict

        def __init__(self, shard: int) -> None:
            grain.DatasetIterator.__init__(self)
            Reader.__init__(self, shard)

    class Shard(grain.IterDataset):
        def __init__(self, shard: int) -> None:
            super().__init__()
            self._shard = shard

        def __iter__(self) -> Records:
            return Records(self._shard)

    def opened(shard: int) -> Any:
        data = Shard(shard)
        return data.batch(BATCH, batch_fn=batch_fn) if batch_first else data

    data: Any = grain.experimental.InterleaveIterDataset(
        grain.MapDataset.source(range(SHARDS)).repeat().map(opened),
        cycle_length=SHARDS // max(num_workers, 1),
        iter_buffer_size=2 if batch_first else 64,
    )
    data = data if batch_first else data.batch(BATCH, batch_fn=batch_fn)
    if num_workers:
        options = grain.MultiprocessingOptions(num_workers, per_worker_buffer_size=8)
        data = data.mp_prefetch(options)
    return flow(iter(data))


OURS, OURS_BY_SHARD = "feeder, mixed", "feeder, by shard (block_length=256)"
NO_SNAPSHOTS, STATES = "feeder, mixed, no snapshots", "feeder, mixed, get_state() each step"
TORCHDATA, ITS_STATES = "torchdata, mixed, np", "torchdata, mixed, np, state_dict() each step"
EPOCH, UNEQUAL_EPOCH = "feeder, epoch of equal shards", "feeder, epoch of unequal shards"
bind = functools.partial
CONTENDERS: dict[str, Callable[[], Turn]] = {
    "by hand, in process": by_hand,
    "feeder, mixed, in process": bind(feeder_flow, num_workers=0),
    "feeder, mixed, threads": bind(feeder_flow, worker_type="thread"),
    "feeder, mixed, block_length=1": bind(feeder_flow, block=1),
    "feeder, mixed, block_length=8": bind(feeder_flow, block=8),
    OURS_BY_SHARD: bind(feeder_flow, block=BATCH),
    NO_SNAPSHOTS: bind(feeder_flow, snapshot_every=10**9),
    OURS: feeder_flow,
    STATES: bind(feeder_flow, states=True),
    "torch, mixed": bind(torch_flow, mixed, None),
    "torch, mixed, np": bind(torch_flow, mixed),
    "torch, mixed, np, prefetch 2": bind(torch_flow, mixed, prefetch_factor=2),
    "torch, by shard, np": bind(torch_flow, by_shard),
    TORCHDATA: bind(torch_flow, Mixed, snapshot_every_n_steps=10**9),
    ITS_STATES: bind(torch_flow, Mixed, states=True, snapshot_every_n_steps=1),
    "grain, mixed, in process": bind(grain_flow, 0),
    "grain, mixed": bind(grain_flow, WORKERS),
    "grain, mixed, np": bind(grain_flow, WORKERS, joined),
    "grain, by shard, np, in process": bind(grain_flow, 0, joined, True),
    "grain, by shard, np": bind(grain_flow, WORKERS, joined, True),
    EPOCH: bind(feeder_epoch, EQUAL),
    UNEQUAL_EPOCH: bind(feeder_epoch, UNEQUAL),
    f"{EPOCH}, in process": bind(feeder_epoch, EQUAL, num_workers=0),
    f"{UNEQUAL_EPOCH}, in process": bind(feeder_epoch, UNEQUAL, num_workers=0),
    "feeder, ms to the first batch": bind(first_batch, feeder_at, 0),
    "feeder, ms to a batch in mid-epoch": bind(first_batch, feeder_at, MID_EPOCH),
    "torchdata, ms to the first batch": bind(first_batch, torchdata_at, 0),
    "torchdata, ms to a batch in mid-epoch": bind(first_batch, torchdata_at, MID_EPOCH),
}
COSTS = (
    (NO_SNAPSHOTS, OURS, "snapshots at every step, the default, cost"),
    (OURS, STATES, "get_state() after every step costs"),
    (NO_SNAPSHOTS, STATES, "both cost (goal: 5 %)"),
    (TORCHDATA, ITS_STATES, "snapshots and state_dict() at every step cost torchdata"),
    (EPOCH, UNEQUAL_EPOCH, "unequal ends cost"),
    (f"{EPOCH}, in process", f"{UNEQUAL_EPOCH}, in process", "unequal ends cost, in process,"),
)


@dataclass
class Contender(Served):
    """One of `CONTENDERS`."""

    cpus: list[float] = field(default_factory=list)  # us per record

    @classmethod
    def start(cls, name: str, case: str = "") -> Contender:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, __file__, "--serve", name, *case.split()]
        contender = cls(name, subprocess.Popen(command, text=True, process_group=0, **pipes))
        contender.expect("ready")
        os.killpg(contender.process.pid, signal.SIGSTOP)
        return contender

    def turn(self, seconds: float) -> None:
        before = self._cpu_s()
        super().turn(seconds)
        records = self.rates[-1] * BATCH * seconds * (1 + WARM_UP_SHARE)
        self.cpus.append((self._cpu_s() - before) / records * 1e6)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(self.process.pid, signal.SIGCONT)
            self.process.communicate(timeout=10)  # so that Grain gives its shared memory back
        with contextlib.suppress(ProcessLookupError):
            super().end()

    def _cpu_s(self) -> float:
        me, total = psutil.Process(self.process.pid), 0.0
        for process in [me, *me.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:2])
        return total

    def times(self, other: Contender) -> float:
        return statistics.median(a / b for a, b in zip(self.rates, other.rates, strict=True))


def report(found: dict[str, Contender]) -> None:
    print(f"\n{'':67}{'CPU us':>10}{OURS:>16}")
    print(f"{'2 workers, or in process':44}{'batches/s':>10}{'records/s':>13}", end="")
    print(f"{'per record':>10}{'is':>16}")
    for name, one in found.items():
        if ", ms " in name:
            print(f"{name:44}{one.rate:10.1f} ms")
            continue
        print(f"{name:44}{one.rate:10,.0f}{one.rate * BATCH:13,.0f}", end="")
        if "epoch" not in name:
            shown = f"{found[OURS].times(one):14.2f} ×" if OURS in found else ""
            print(f"{statistics.median(one.cpus):10.2f}{shown}", end="")
        print()
    print()
    for without, having, text in COSTS:
        if without in found and having in found:
            one, other = found[without], found[having]
            more = statistics.median(b / a for a, b in zip(one.cpus, other.cpus, strict=True)) - 1
            of_cpu = "" if "epoch" in without else f", {more:.1%} of the processors'"
            print(f"{text} {one.times(other) - 1:.1%} of the time{of_cpu}")
    for ours, kind in ((OURS, ", mixed"), (OURS_BY_SHARD, ", by shard")):
        rest = [one for name, one in found.items() if name[0] in "tg" and kind in name]
        if ours in found and (rest := [one for one in rest if ", ms " not in one.name]):
            best = max(rest, key=lambda one: one.rate)
            times = found[ours].times(best)
            print(f"{ours}: {times:.2f} × the best of the others, {best.name} (goal: 3)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--serve", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:  # one contender, a turn for each line of input
        warnings.filterwarnings("ignore")  # torch warns of the machine's few cores
        turn = CONTENDERS[options.serve]()
        print("ready", flush=True)
        for line in sys.stdin:
            print(turn(float(line)), flush=True)
        return
    found: dict[str, Contender] = {}
    try:
        for name in CONTENDERS:
            peer = name.split(",")[0]
            known = peer in ("feeder", "by hand") or importlib.util.find_spec(peer)
            if known and options.only in name:
                found[name] = Contender.start(name)
        for _ in range(options.rounds):
            for contender in found.values():
                contender.turn(options.seconds)
    finally:
        for contender in found.values():
            contender.end()
    report(found)


if __name__ == "__main__":
    main()
