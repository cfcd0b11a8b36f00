"""Images per second from JPEG files: feeder beside PyTorch's DataLoader, webdataset and Grain.

    python benchmarks/images.py [--seconds 4] [--rounds 5] [--images 2000] [--only TEXT]

JPEG images of 256×256, about 30 KB, in ten folders, and again in eight tar shards; batches of 64,
resized to 224×224, shuffled. All decode by Pillow: image → RGB → bilinear resize → uint8; feeder
looks for an EXIF orientation too. Loaders take turns in process groups of their own, as in
throughput.py; a figure is the median of the rounds, ratios are taken within a round. CPU is that of
the whole group. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import io
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image
from throughput import WARM_UP_SHARE, Served, take_for

CLASSES, SHARDS, SIDE, SIZE, BATCH, WORKERS = 10, 8, 256, (224, 224), 64, 2


def write(folder: Path, num_images: int) -> None:
    """Writes smooth images with a little noise, as photographs have it."""
    rng = np.random.default_rng(0)
    shards = [tarfile.open(folder / f"{shard}.tar", "w") for shard in range(SHARDS)]  # noqa: SIM115
    for number in range(num_images):
        coarse = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.int16)
        noisy = smooth + rng.integers(-12, 13, smooth.shape)
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        label = number % CLASSES
        path = folder / "images" / f"class {label}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
        for suffix, data in (("jpg", file.getvalue()), ("cls", b"%d" % label)):
            info = tarfile.TarInfo(f"{number:06}.{suffix}")
            info.size = len(data)
            shards[number % SHARDS].addfile(info, io.BytesIO(data))
    for shard in shards:
        shard.close()


def decoded(file: Any) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB").resize(SIZE[::-1], Image.Resampling.BILINEAR))


class Files:
    """What the peers read: a path and a label for each index."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(map(str, folder.glob("images/*/*.jpg")))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self._paths[index]
        return {"image": decoded(path), "label": int(path.split("class ")[1][0])}


def by_hand(folder: Path) -> Iterator[Any]:
    files = Files(folder)
    for _ in itertools.count():
        order = np.random.default_rng(0).permutation(len(files)).tolist()
        for first in range(0, len(order) - BATCH + 1, BATCH):
            yield np.stack([files[index]["image"] for index in order[first : first + BATCH]])


def of_feeder(folder: Path, **options: Any) -> Iterator[Any]:
    import feeder

    source = feeder.sources.ImageFolder(folder / "images", size=SIZE)
    return iter(feeder.DataLoader(source, BATCH, shuffle=True, num_epochs=None, **options))


def of_shards(folder: Path) -> Iterator[Any]:
    import feeder

    decode = functools.partial(feeder.sources.decode_image, size=SIZE)
    source = feeder.sources.WebDataset(f"{folder}/*.tar", decode={"jpg": decode})
    shuffle = feeder.WindowShuffle(256)
    return iter(
        feeder.DataLoader(source, BATCH, shuffle=shuffle, num_epochs=None, num_workers=WORKERS)
    )


def of_torch(folder: Path) -> Iterator[Any]:
    import torch.utils.data

    loader: Any = torch.utils.data.DataLoader(
        Files(folder),  # type: ignore[arg-type]
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def of_webdataset(folder: Path) -> Iterator[Any]:
    import torch.utils.data
    import webdataset

    def sample(content: dict[str, Any]) -> dict[str, Any]:
        return {"image": decoded(io.BytesIO(content["jpg"])), "label": int(content["cls"])}

    shards = [str(path) for path in sorted(folder.glob("*.tar"))]
    data = webdataset.WebDataset(shards, shardshuffle=SHARDS).shuffle(256).map(sample).repeat()
    loader: Any = torch.utils.data.DataLoader(data.batched(BATCH), None, num_workers=WORKERS)
    return iter(loader)


def of_grain(folder: Path) -> Iterator[Any]:
    import grain
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # Grain's workers need parsed flags
    data: Any = grain.MapDataset.source(Files(folder)).seed(0).shuffle().repeat().batch(BATCH)
    options = grain.MultiprocessingOptions(num_workers=WORKERS)
    return iter(data.to_iter_dataset().mp_prefetch(options))


OURS, OUR_SHARDS = "feeder, 2 workers", "feeder, tar shards, 2 workers"
CONTENDERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    "by hand, in process": by_hand,
    "feeder, in process": of_feeder,
    OURS: functools.partial(of_feeder, num_workers=WORKERS),
    "feeder, 2 threads": functools.partial(of_feeder, num_workers=WORKERS, worker_type="thread"),
    OUR_SHARDS: of_shards,
    "torch, 2 workers": of_torch,
    "webdataset, 2 workers": of_webdataset,
    "grain, 2 workers": of_grain,
}


def serve(name: str, folder: Path) -> None:
    warnings.filterwarnings("ignore")  # torch warns of the machine's few cores
    batches = CONTENDERS[name](folder)
    next(batches)
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = float(line)
        take_for(batches, seconds * WARM_UP_SHARE)
        print(_rate(batches, seconds), flush=True)


def _rate(batches: Iterator[Any], seconds: float) -> float:
    began = time.perf_counter()
    count = take_for(batches, seconds)
    return count * BATCH / (time.perf_counter() - began)


@dataclass
class Contender(Served):
    """One of `CONTENDERS`."""

    cpus: list[float] = field(default_factory=list)  # ms per image

    @classmethod
    def start(cls, name: str, case: str) -> Contender:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, __file__, "--serve", name, "--folder", case]
        one = cls(name, subprocess.Popen(command, text=True, process_group=0, **pipes))  # type: ignore[call-overload]
        one.expect("ready")
        os.killpg(one.process.pid, signal.SIGSTOP)
        return one

    def turn(self, seconds: float) -> None:
        before = self._cpu_s()
        super().turn(seconds)
        images = self.rates[-1] * seconds * (1 + WARM_UP_SHARE)
        self.cpus.append((self._cpu_s() - before) / images * 1e3)

    def _cpu_s(self) -> float:
        me, total = psutil.Process(self.process.pid), 0.0
        for process in [me, *me.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:2])
        return total


def report(found: dict[str, Contender]) -> None:
    print(f"\n{'':34}{'':10}{'CPU ms':>10}{OURS:>20}")
    print(f"{'':34}{'images/s':>10}{'per image':>10}{'is':>20}")
    for name, one in found.items():
        shown = ""
        if OURS in found:
            pairs = zip(found[OURS].rates, one.rates, strict=True)
            shown = f"{statistics.median(a / b for a, b in pairs):18.2f} ×"
        print(f"{name:34}{one.rate:10,.0f}{statistics.median(one.cpus):10.2f}{shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--serve", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.folder)
        return
    found: dict[str, Contender] = {}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.images)
        try:
            for name in CONTENDERS:
                peer = name.split(",")[0]
                known = peer in ("feeder", "by hand") or importlib.util.find_spec(peer)
                if known and options.only in name:
                    found[name] = Contender.start(name, folder)
            for _ in range(options.rounds):
                for one in found.values():
                    one.turn(options.seconds)
        finally:
            for one in found.values():
                one.end()
    report(found)


if __name__ == "__main__":
    main()
