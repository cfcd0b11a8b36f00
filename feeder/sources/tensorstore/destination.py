"""Where the arrays of a data set are written, and are to be in the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

import optree

from feeder.sources.tensorstore.specs import (
    MANIFEST,
    Spec,
    as_folder,
    as_json,
    as_kvstore,
    below,
    is_spec,
    manifest,
)
from feeder.sources.tensorstore.staging import Place, places


class Destination:
    """The places of the arrays of a data set; what was written is deleted, unless it is published.

    Args:
        specs: Of each array, in the end.
        kvstores: Where each place is: one for each array, or one for all of them.
        names: Of each array, its path below its place.
        listed: A record with the names of its arrays; None: nothing lists them.
        record: Structure of a record.
        overwrite: Whether what is there may be replaced.

    Attributes:
        specs: See above.
        staged: The spec of each array, while it is written.
        context: TensorStore's resources; stores in memory live in it.
    """

    def __init__(
        self,
        specs: Sequence[Spec],
        kvstores: Sequence[Spec],
        names: Sequence[str],
        listed: Any,
        record: optree.PyTreeSpec,
        overwrite: bool,
    ) -> None:
        import tensorstore as ts

        self.context = ts.Context(
            {name: value for spec in specs for name, value in spec.get("context", {}).items()}
        )
        self.specs = specs
        self._listed = listed
        self._record = record
        self._places: list[Place] = places(kvstores, self.context, overwrite)
        of = self._places * len(specs) if len(kvstores) == 1 else self._places
        self.staged = [
            {**spec, "kvstore": {**place.kvstore, "path": place.kvstore["path"] + name}}
            for spec, place, name in zip(specs, of, names, strict=False)
        ]

    @classmethod
    def of(cls, spec: Any, record: optree.PyTreeSpec, overwrite: bool) -> Destination:
        """The places that a user named.

        Raises:
            TypeError: A record cannot be listed below one place.
            ValueError: The specs are wrong, or no specs of such records.
            FileExistsError: Something is there already.
        """
        if isinstance(spec, str | os.PathLike) and "|" not in os.fspath(spec):
            root = as_folder(as_kvstore(spec))
            names = _names(record)
            specs = [below(root, name) for name in names]
            listed = record.unflatten(names) if names != [""] else None
            paths = [f"{name}/" if name else "" for name in names]
            return cls(specs, [root], paths, listed, record, overwrite)
        try:
            nodes = record.flatten_up_to(spec) if not is_spec(spec) else [spec]
            if len(nodes) != record.num_leaves:
                raise ValueError
        except (ValueError, TypeError):
            raise ValueError(
                "`spec` must be a path or URL, or have a spec for each leaf of a record, got "
                f"{spec!r} for records of {record}"
            ) from None
        specs = [_array_spec(node) for node in nodes]
        kvstores = [node["kvstore"] for node in specs]
        return cls(specs, kvstores, [""] * len(specs), None, record, overwrite)

    def publish(self) -> None:
        """Puts all in its place, at once for one place."""
        import tensorstore as ts

        if self._listed is not None:
            store = ts.KvStore.open(self._places[0].kvstore, context=self.context).result()
            store.write(MANIFEST, manifest(self._listed)).result()
        # No mixture of old and new arrays can be seen at any time.
        for place in self._places:
            place.retire()
        for place in self._places:
            place.publish()
        self._places = []

    def written(self) -> Any:
        """The specs of all arrays, as a pytree; of those in memory, the arrays."""
        import tensorstore as ts

        return self._record.unflatten(
            [
                ts.open(spec, open=True, context=self.context).result()
                if spec["kvstore"]["driver"] == "memory"
                else spec
                for spec in self.specs
            ]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for place in self._places:
            place.discard()


def _array_spec(node: Any) -> Spec:
    """The spec of an array to be written, whose key-value store ends with a slash."""
    if isinstance(node, str | os.PathLike) and "|" not in os.fspath(node):
        return below(as_folder(as_kvstore(node)), "")
    import tensorstore as ts

    spec = as_json(node)
    is_part = isinstance(node, ts.TensorStore) or (isinstance(node, dict) and "transform" in node)
    if "kvstore" not in spec or is_part:
        raise ValueError(
            f"`spec` must name a whole array in a key-value store, got {node!r}; leave out "
            "transforms and views"
        )
    return {**spec, "kvstore": as_folder(spec["kvstore"])}


def _names(record: optree.PyTreeSpec) -> list[str]:
    """A name for each leaf of a record, to be found below one place.

    Raises:
        TypeError: A record is not made of dicts and tuples.
        ValueError: A key cannot be part of a name, or two leaves have one.
    """
    names = []
    for path, accessor in zip(record.paths(), record.accessors(), strict=True):
        name = ".".join(map(str, path))
        reserved = (".", "..", MANIFEST, "kvstore")
        if path and ("/" in name or name in reserved or "" in path):
            raise ValueError(
                "`source` must have records with names for keys, got "
                f"{accessor.codify('record')}; rename it in a transform, or give a spec for each "
                "leaf"
            )
        names.append(name)
    if not _is_plain(record) or len(set(names)) < len(names):
        raise TypeError(
            f"`source` must have records of dicts and tuples to be written below one place, got "
            f"{record}; change them in a transform, or give a spec for each leaf"
        )
    return names


def _is_plain(record: optree.PyTreeSpec) -> bool:
    """Whether JSON can tell its structure: dicts with strings for keys, and tuples."""
    if record.is_leaf():
        return True
    named = record.type is tuple or all(isinstance(key, str) for key in record.entries())
    return record.type in (dict, tuple) and named and all(map(_is_plain, record.children()))
