"""The index of a filtered source, in a file: written whole or not at all, never taken for another.

Guarantees:
    * The file appears at its path in one step, complete: `os.replace`.
    * What is read back is what was written (checksums of the zip format), of a source and a
      predicate that answer alike at the records that are looked at again.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder.plan.order import Indices
from feeder.sources.fingerprint import function_digest, record_digest

_FORMAT = "feeder.filtered 1"
_SAMPLES = 8
"""Records that are read again, of all and of those kept, each spread evenly."""

Keeps = Callable[[Any], bool]


def checked_path(path: Any) -> Path:
    """A path that an index can be written to.

    Raises:
        TypeError: It is no path.
        ValueError: There is no such folder, or it cannot be written to, or the path is a folder.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"`path` must be the name of a file, got {path!r}")
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"`path` must be the name of a file, got the folder {file}")
    if not file.parent.is_dir():
        raise ValueError(f"`path` must be in a folder that exists, got {file}; make {file.parent}")
    if not file.exists() and not os.access(file.parent, os.W_OK | os.X_OK):
        raise ValueError(f"`path` must be in a folder that can be written to, got {file}")
    return file


def write(path: Path, indices: Indices, source: Any, predicate: Callable[[Any], Any]) -> None:
    """Writes an index.

    Args:
        path: Where.
        indices: Records kept, in ascending order.
        source: What they are records of.
        predicate: What kept them.

    Raises:
        OSError: It cannot be written; nothing is left of it then.
    """
    samples = _samples(indices, len(source))
    header = {
        "format": _FORMAT,
        "records": len(source),
        "kept": len(indices),
        "predicate": function_digest(predicate),
        "python": _python(),
        "samples": {index: record_digest(source[index]) for index in samples},
    }
    small: NDArray[Any] = indices.astype(np.uint32) if len(source) <= 2**32 else indices
    if len(source) < 8 * small.nbytes:
        mask = np.zeros(len(source), np.bool_)
        mask[indices] = True
        arrays: dict[str, Any] = {"mask": np.packbits(mask)}
    else:
        arrays = {"indices": small}
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with scratch.open("xb") as file:
            np.savez(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def read(path: Path, source: Any, predicate: Callable[[Any], Any], keeps: Keeps) -> Indices:
    """Reads an index back.

    Args:
        path: Where `write` wrote it.
        source: What it must be the index of.
        predicate: What must have kept the records.
        keeps: The predicate's answer, checked.

    Raises:
        ValueError: The file is damaged, or of another source or predicate.
        OSError: It cannot be read.
    """
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no archive")
        with np.load(path, allow_pickle=False) as arrays:
            header = json.loads(arrays["header"].tobytes())
            if header["format"] != _FORMAT:
                raise ValueError(f"its format is {header['format']!r}")
            records, kept, samples = header["records"], header["kept"], header["samples"]
            if "mask" in arrays:
                mask = np.unpackbits(arrays["mask"], count=records).astype(np.bool_)
                indices = np.flatnonzero(mask)
            else:
                indices = arrays["indices"].astype(np.int64)
            if len(indices) != kept:
                raise ValueError(f"it says {kept} records, and holds {len(indices)}")
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"`path` must be an index that feeder.filtered wrote, got {path}, which is damaged or "
            "another file; delete it, and it is made anew"
        ) from error
    if records != len(source):
        raise _mismatch(path, f"of a source of {records} records, where this has {len(source)}")
    if header["python"] == _python() and header["predicate"] != function_digest(predicate):
        raise _mismatch(path, "of a predicate with other code or values")
    for index, digest in samples.items():
        if record_digest(source[int(index)]) != digest:
            raise _mismatch(path, f"of a source whose record {index} is another one")
    for index in map(int, samples):
        place = int(np.searchsorted(indices, index))
        is_kept = place < len(indices) and int(indices[place]) == index
        if keeps(source[index]) != is_kept:
            raise _mismatch(path, f"of a predicate that answers otherwise for record {index}")
    return indices


def _mismatch(path: Path, what: str) -> ValueError:
    return ValueError(
        f"`path` must be the index of this source and predicate, got {path}, which is {what}; "
        "delete it, and it is made anew, or give another path"
    )


def _samples(indices: Indices, length: int) -> list[int]:
    """Records to look at again: of all, the first and the last among them, and of those kept."""
    if not length:
        return []
    spread = np.linspace(0, length - 1, _SAMPLES).astype(np.int64)
    if len(indices):
        kept = indices[np.linspace(0, len(indices) - 1, _SAMPLES).astype(np.int64)]
        spread = np.concatenate([spread, kept])
    found: list[int] = np.unique(spread).tolist()
    return found


def _python() -> str:
    return ".".join(platform.python_version_tuple()[:2])  # bytecode is a version's own
