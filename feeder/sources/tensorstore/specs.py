"""What names an array: TensorStore's specs, its URLs, paths; and data sets of several arrays."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    import tensorstore as ts

T = TypeVar("T")

Spec: TypeAlias = dict[str, Any]
"""A TensorStore spec as JSON."""

MANIFEST = "zarr.json"
"""The zarr group at the top of a data set, which lists its arrays; written last."""

_OPEN_S = 60
"""Seconds that metadata may take to be read."""

_MAX_NAME = 200
"""Characters of the name of an array that has neither path nor URL."""


def is_spec(node: Any) -> bool:
    """Whether a node of the user's pytree is the spec of an array."""
    if isinstance(node, str | os.PathLike):
        return True
    if isinstance(node, dict):
        return isinstance(node.get("driver"), str) or "kvstore" in node
    return type(node).__module__.startswith("tensorstore")


def as_kvstore(place: str | os.PathLike[str]) -> Spec:
    """The key-value store at a place that is named by a path, or by its URL.

    Raises:
        ValueError: TensorStore knows no such URL.
    """
    import tensorstore as ts

    text = os.fspath(place)
    if "://" in text:
        return dict(ts.KvStore.Spec(text).to_json())
    path = Path(text).expanduser().absolute()
    return {"driver": "file", "path": f"{path}{'' if path.is_file() else '/'}"}


def as_json(spec: Any) -> Spec:
    """The spec of an array as JSON.

    Raises:
        TypeError: It is no spec.
        ValueError: TensorStore knows no such spec.
    """
    import tensorstore as ts

    if isinstance(spec, ts.TensorStore):
        spec = spec.spec()
    if isinstance(spec, ts.Spec):
        return dict(spec.to_json())
    if not is_spec(spec):
        raise TypeError(
            "`spec` must be a TensorStore spec (a dict with a 'driver', a URL, a path), or a "
            f"pytree of them, got {spec!r}"
        )
    try:
        if isinstance(spec, str | os.PathLike):
            text = os.fspath(spec)
            spec = text if "|" in text else {"driver": "auto", "kvstore": as_kvstore(spec)}
        return dict(ts.Spec(_with_names(spec)).to_json())
    except ValueError as error:
        raise ValueError(f"`spec` must be a TensorStore spec, got {spec!r}: {error}") from None


def _with_names(spec: Any) -> Any:
    """The spec with strings in the place of paths."""
    if isinstance(spec, dict):
        return {key: _with_names(value) for key, value in spec.items()}
    return os.fspath(spec) if isinstance(spec, os.PathLike) else spec


def name_of(spec: Spec) -> str:
    """Where an array is, for people: its path or URL, where it has one."""
    import tensorstore as ts

    kvstore = spec.get("kvstore", {})
    if kvstore.get("driver") == "file":
        return str(kvstore["path"])
    try:
        return str(ts.Spec(spec).url).removesuffix("|auto:")
    except (ValueError, NotImplementedError):
        text = json.dumps(kvstore or spec)
        return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}[...]"


def reason(error: BaseException) -> str:
    """What TensorStore says of an error, without the spec that it repeats."""
    return str(error).split(" [tensorstore_spec=")[0]


def opened(future: ts.Future[T], what: str) -> T:
    """What is being opened, once it is open.

    Raises:
        TimeoutError: It did not answer: TensorStore would try again for many minutes.
        Exception: Whatever TensorStore raises.
    """
    try:
        return future.result(timeout=_OPEN_S)
    except TimeoutError:
        message = f"{what} did not answer within {_OPEN_S} s; is the address right?"
        raise TimeoutError(message) from None


def expanded(place: str | os.PathLike[str]) -> Any:
    """The arrays of a data set that `write_tensorstore` made at one place, as a pytree of specs.

    Returns:
        The place itself, where it holds one array.

    Raises:
        ValueError: It is a group of arrays that nobody has listed.
        TimeoutError: Nobody answers there.
    """
    import tensorstore as ts

    if "|" in os.fspath(place):
        return place
    try:
        kvstore = as_folder(as_kvstore(place))
        read = ts.KvStore.open(kvstore).result().read(MANIFEST)
        found = opened(read, os.fspath(place))
    except (ValueError, NotImplementedError):
        return place  # opening it says why
    if found.state != "value":
        return place
    try:
        group = json.loads(found.value)
    except ValueError:
        return place
    if not isinstance(group, dict) or group.get("node_type") != "group":
        return place
    try:
        listed = group["attributes"]["feeder"]["record"]
    except (KeyError, TypeError):
        raise ValueError(
            f"`spec` must name arrays, got the zarr group {os.fspath(place)}; name each of them, "
            f'as {{"x": "{os.fspath(place).rstrip("/")}/x"}}'
        ) from None
    return _specs(listed, kvstore)


def as_folder(kvstore: Spec) -> Spec:
    """A key-value store whose path ends with a slash, so that others lie below it."""
    path = kvstore.get("path", "")
    return {**kvstore, "path": path if not path or path.endswith("/") else f"{path}/"}


def manifest(record: Any) -> bytes:
    """What lists the arrays of a data set.

    Args:
        record: A record with the name of its array in the place of each leaf.
    """
    group = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"feeder": {"record": record}},
    }
    return json.dumps(group, indent=1).encode()


def below(kvstore: Spec, name: str) -> Spec:
    """The spec of a zarr array below a place."""
    return {
        "driver": "zarr3",
        "kvstore": {**kvstore, "path": f"{kvstore.get('path', '')}{name}{'/' if name else ''}"},
        # All chunks were written, so one that is missing was lost.
        "fill_missing_data_reads": False,
        "store_data_equal_to_fill_value": True,
    }


def _specs(listed: Any, kvstore: Spec) -> Any:
    if isinstance(listed, dict):
        return {key: _specs(node, kvstore) for key, node in listed.items()}
    if isinstance(listed, list):
        return tuple(_specs(node, kvstore) for node in listed)
    return below(kvstore, listed)
