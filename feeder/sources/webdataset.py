"""WebDataset's shards: tar files whose neighbouring files of one name make a sample."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from feeder import arguments
from feeder.sources import pillow, shards
from feeder.sources.stream import Stream

Decoder = Callable[[bytes], Any]


class WebDataset(Stream):
    """A stream of the samples in tar files, each file a shard.

    Files that follow each other and whose paths agree up to the first dot of their names are a
    sample, as in the webdataset package: ``0001.jpg``, ``0001.cls`` and ``0001.seg.png`` make
    ``{"__key__": "0001", "jpg": …, "cls": …, "seg.png": …}``. Suffixes become lower case; what is
    no regular file, has no dot, or lies in ``__such__`` folders is left out.

    Contents are decoded in the workers, after shuffling, by what follows the last dot: images to
    uint8 (height, width, 3); ``cls``, ``cls2``, ``id``, ``index`` and ``inx`` to int; ``json`` and
    ``jsn``; ``txt``, ``text`` and ``transcript`` to str; ``npy`` to an array and ``npz`` to a dict
    of them. Others, pickles among them, stay bytes. With ``on_bad_record="skip"`` a sample that
    cannot be decoded is left out. A shard that is cut short or damaged is always a
    `feeder.SourceError`.

    A resumed run seeks its place in a ``.tar``, and decompresses up to it in a ``.tar.gz``,
    ``.tar.bz2`` or ``.tar.xz``.

    Attributes:
        shards: Names of the tar files, in order.

    Args:
        shards: A path, a pattern with braces (``"train-{000..127}.tar"``) or wildcards
            (``"train-*.tar"``), or a sequence of such. The same shards in every process of a job.
        decode: False: everything stays bytes. A dict: the user's ``decoder(bytes)`` by suffix
            (``"seg.png"`` goes before ``"png"``), beside the standard ones, or in their place;
            None leaves the bytes as they are.
        opener: ``opener(shard)`` → a binary file that can be sought, for shards that are not files
            here, such as fsspec's ``open``. None: they are.
        length: As of `feeder.Stream`.
        cycle_length: As of `feeder.Stream`.
        block_length: As of `feeder.Stream`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A pattern matches nothing, or a file is not there.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        decode: bool | Mapping[str, Decoder | None] = True,
        opener: Callable[[str], Any] | None = None,
        length: int | None = None,
        cycle_length: int | None = None,
        block_length: int | None = None,
    ) -> None:
        arguments.optional_callable("opener", opener, "opener(shard)")
        decoders = _decoders(decode)
        self.shards = _names(shards, opener is None)
        super().__init__(
            _Opener(self.shards, opener),
            len(self.shards),
            length,
            cycle_length=cycle_length,
            block_length=block_length,
        )
        self.decode = None if decoders is None else Decode(decoders)

    def __repr__(self) -> str:
        return f"WebDataset({len(self.shards)} shards, the first of them {self.shards[0]!r})"


def _names(given: Any, must_exist: bool) -> tuple[str, ...]:
    return shards.names_of("shards", given, must_exist)


class _Opener:
    def __init__(self, names: tuple[str, ...], opener: Callable[[str], Any] | None) -> None:
        self._names, self._opener = names, opener

    def __call__(self, shard: int, _epoch: int, state: Any) -> Iterable[dict[str, Any]]:
        from feeder.sources import tar  # every worker imports this file, few of them open a tar

        return tar.Samples(self._names[shard], self._opener or tar.open_file, state)


class Decode:
    """Decodes the contents of a sample.

    Args:
        decoders: By suffix; None: bytes that stay as they are.
    """

    def __init__(self, decoders: dict[str, Decoder | None]) -> None:
        self._decoders = decoders

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The sample, decoded.

        Raises:
            ValueError: A standard decoder cannot make anything of it.
            Exception: Whatever a decoder of the user's raises.
        """
        return {
            suffix: content if suffix == "__key__" else self._decoded(sample, suffix, content)
            for suffix, content in sample.items()
        }

    def _decoded(self, sample: dict[str, Any], suffix: str, content: bytes) -> Any:
        name = suffix if suffix in self._decoders else suffix.rpartition(".")[2]
        decoder = self._decoders.get(name)
        if decoder is None:
            return content
        try:
            return decoder(content)
        except Exception as error:
            if decoder is not STANDARD.get(name):
                raise
            raise ValueError(
                f"the file {sample['__key__']}.{suffix} of a shard cannot be decoded: "
                f"{error or type(error).__name__}"
            ) from error


def _decoders(decode: Any) -> dict[str, Decoder | None] | None:
    if isinstance(decode, bool):
        return dict(STANDARD) if decode else None
    if not isinstance(decode, Mapping):
        raise TypeError(f"`decode` must be True, False or a dict of decoders, got {decode!r}")
    for suffix, decoder in decode.items():
        if not isinstance(suffix, str):
            raise TypeError(f"`decode` must have suffixes for keys, got {suffix!r}")
        arguments.optional_callable(f"decode[{suffix!r}]", decoder, "decoder(bytes)")
    return {**STANDARD, **{key.lower().lstrip("."): value for key, value in decode.items()}}


def _text(data: bytes) -> str:
    return data.decode()


def _array(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _arrays(data: bytes) -> dict[str, Any]:
    return dict(_array(data))


STANDARD: dict[str, Decoder | None] = {
    **dict.fromkeys(pillow.EXTENSIONS, pillow.decode_image),
    **dict.fromkeys(("cls", "cls2", "id", "index", "inx"), int),
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _array,
    "npz": _arrays,
}
"""Decoders of what has no say in what it becomes, as pickles have."""
