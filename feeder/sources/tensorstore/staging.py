"""Where an unfinished data set lies, so that nobody can open it as if it were whole.

An array's metadata is written after all of its chunks: until then TensorStore, and any other
reader, finds no array. In files, all of this happens in a folder beside the place, which is renamed
at the end; what was there before stays whole until then.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from feeder.sources.tensorstore.specs import Spec

if TYPE_CHECKING:
    import tensorstore as ts

_METADATA = ("zarr.json", ".zarray", ".zgroup", "attributes.json", "info")
"""What is at the top of a data set in one of the formats; nothing else is ever deleted."""


class Place(Protocol):
    """Where something is to be, once it is whole."""

    @property
    def kvstore(self) -> Spec:
        """Where it is written."""
        ...

    def retire(self) -> None:
        """Takes away what was there before."""
        ...

    def publish(self) -> None:
        """Puts there what was written."""
        ...

    def discard(self) -> None:
        """Deletes what was written."""
        ...


class Folder:
    """A place in files.

    Args:
        path: The folder.
        overwrite: Whether one that is there may be replaced.

    Raises:
        FileExistsError: One is there, and may not.
    """

    def __init__(self, path: str, overwrite: bool) -> None:
        self._path = Path(path)
        mark = secrets.token_hex(4)
        self._stage = self._path.with_name(f".{self._path.name}.partial-{mark}")
        self._old = self._path.with_name(f".{self._path.name}.old-{mark}")
        self._replaces = self._path.is_file() or (self._path.is_dir() and any(self._path.iterdir()))
        if self._replaces and not overwrite:
            raise _exists(path)
        if self._replaces and not any((self._path / name).is_file() for name in _METADATA):
            raise FileExistsError(
                f"`spec` must name a data set for `overwrite=True` to replace, got {path}, which "
                "holds something else; delete it yourself"
            )
        self._stage.mkdir(parents=True)

    @property
    def kvstore(self) -> Spec:
        """The folder beside the place."""
        return {"driver": "file", "path": f"{self._stage}/"}

    def retire(self) -> None:
        """Moves what was there before aside."""
        if self._replaces:
            self._path.rename(self._old)

    def publish(self) -> None:
        """Renames the folder; where somebody else made one meanwhile, theirs stays.

        Raises:
            FileExistsError: Somebody did.
        """
        try:
            self._stage.rename(self._path)  # an empty folder makes way
        except OSError as error:
            if self._path.exists():
                raise _exists(str(self._path)) from error
            raise
        _sync(self._path.parent)
        shutil.rmtree(self._old, ignore_errors=True)

    def discard(self) -> None:
        """Deletes the folder beside the place."""
        shutil.rmtree(self._stage, ignore_errors=True)


class Prefix:
    """A place in any other key-value store: metadata comes last there, and nothing is renamed.

    Args:
        kvstore: The place.
        context: Where stores in memory live.
        overwrite: Whether what is there may be deleted; it is, at once.

    Raises:
        FileExistsError: Something is there, and may not.
        ValueError: All of the store would be deleted.
    """

    def __init__(self, kvstore: Spec, context: ts.Context, overwrite: bool) -> None:
        import tensorstore as ts

        self.kvstore = kvstore
        self._store = ts.KvStore.open(kvstore, context=context).result()
        if self._store.list().result():
            if not overwrite:
                raise _exists(self._store.url)
            if not kvstore.get("path"):
                raise ValueError(
                    "`spec` must have a path for `overwrite=True` to replace, got "
                    f"{self._store.url}"
                )
            self.discard()

    def retire(self) -> None:
        """Nothing to do: it is gone already."""

    def publish(self) -> None:
        """Nothing to do: the metadata did it."""

    def discard(self) -> None:
        """Deletes all that is there."""
        import tensorstore as ts

        self._store.delete_range(ts.KvStore.KeyRange()).result()


def places(kvstores: Sequence[Spec], context: ts.Context, overwrite: bool) -> list[Place]:
    """The places of several arrays, or of one data set.

    Raises:
        FileExistsError: Something is there already.
        ValueError: Two are at one place, or one is within another.
    """
    paths = [kvstore.get("path", "") for kvstore in kvstores]
    for number, (kvstore, path) in enumerate(zip(kvstores, paths, strict=True)):
        for other, below in zip(kvstores[number + 1 :], paths[number + 1 :], strict=True):
            rest, others = {**kvstore, "path": ""}, {**other, "path": ""}
            if rest == others and (path.startswith(below) or below.startswith(path)):
                raise ValueError(
                    f"`spec` must name a place of its own for each leaf, got {path} and {below}"
                )
    made: list[Place] = []
    try:
        for kvstore in kvstores:
            made.append(  # noqa: PERF401 - those that were made are known where one fails
                Folder(kvstore["path"], overwrite)
                if kvstore["driver"] == "file"
                else Prefix(kvstore, context, overwrite)
            )
    except BaseException:
        for place in made:
            place.discard()
        raise
    return made


def _exists(name: str) -> FileExistsError:
    return FileExistsError(
        f"`spec` must name a place where nothing is, got {name}; give another one, or "
        "`overwrite=True`"
    )


def _sync(folder: Path) -> None:
    """Makes a rename last through a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
