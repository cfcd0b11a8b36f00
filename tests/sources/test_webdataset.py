"""WebDataset's shards: what makes a sample, where a run goes on, and what is damaged."""

import bz2
import functools
import gzip
import io
import json
import lzma
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feeder
from feeder.sources import WebDataset, decode_image, tar
from feeder.sources.shards import braces, names_of
from tests.sources.makers.packages import as_file, pixels, sample, write_tar
from tests.support import run

FORMATS = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT, "ustar": tarfile.USTAR_FORMAT}


def samples(path, state=None):
    found = tar.Samples(str(path), tar.open_file, state)
    try:
        return list(found)
    finally:
        found.close()


def texts(folder, num_shards=3, length=4):
    """Shards of samples that are a text each."""
    for shard in range(num_shards):
        files = {f"{shard}{number}.txt": b"%d" % number for number in range(length)}
        write_tar(folder / f"{shard}.tar", files)
    return folder / f"{{0..{num_shards - 1}}}.tar"


# What makes a sample: as the webdataset package has it, with which this was compared by hand.


@pytest.mark.parametrize("kind", FORMATS)
def test_neighbouring_files_of_one_name_are_a_sample(kind, tmp_path):
    long = "long" * (40 if kind != "ustar" else 4)
    files = {
        "__meta__": b"left out",
        "__dir__/1.txt": b"left out",
        "dir.1/a.seg.PNG": b"1",
        "dir.1/a.Txt": b"2",
        "no suffix": b"left out",
        "dir.2/a.txt": b"3",
        f"./{long}ü.txt": b"4",
        "b.x.y": b"5",
        "b.": b"6",
        "c.txt": b"7",
        "dir.1/a.cls": b"8",
    }
    path = write_tar(tmp_path / "1.tar", files, format=FORMATS[kind])
    assert samples(path) == [
        {"__key__": "dir.1/a", "seg.png": b"1", "txt": b"2"},
        {"__key__": "dir.2/a", "txt": b"3"},
        {"__key__": f"./{long}ü", "txt": b"4"},
        {"__key__": "b", "x.y": b"5", "": b"6"},
        {"__key__": "c", "txt": b"7"},
        {"__key__": "dir.1/a", "cls": b"8"},
    ]


def test_what_is_no_regular_file_is_left_out(tmp_path):
    with tarfile.open(tmp_path / "1.tar", "w") as archive:
        for name, kind in (("a.dir", tarfile.DIRTYPE), ("a.txt", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "b.txt"
            archive.addfile(info)
        info = tarfile.TarInfo("b.txt")
        archive.addfile(info)
    assert samples(tmp_path / "1.tar") == [{"__key__": "b", "txt": b""}]


def test_two_files_of_one_suffix_in_a_sample_are_an_error(tmp_path):
    path = write_tar(tmp_path / "1.tar", {"a.txt": b"1", "a.TXT": b"2"})
    with pytest.raises(feeder.SourceError, match=r"two files are called a\.txt"):
        samples(path)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y.z"])), max_size=12))
def test_from_every_state_the_rest_is_read(files):
    names = [f"{number // 3}{key}.{suffix}" for number, (key, suffix) in enumerate(files)]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in dict.fromkeys(names):
            info = tarfile.TarInfo(name)
            info.size = len(name)
            archive.addfile(info, io.BytesIO(name.encode()))
    data = file.getvalue()
    reader = tar.Samples("it", lambda name: io.BytesIO(data))
    states, found = [reader.get_state()], []
    for one in reader:
        found.append(one)
        states.append(json.loads(json.dumps(reader.get_state())))
    for number, state in enumerate(states):
        assert list(tar.Samples("it", lambda name: io.BytesIO(data), state)) == found[number:]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_shards_are_read_and_gone_on_with(compress, tmp_path):
    plain = write_tar(tmp_path / "1.tar", sample(1) | sample(2) | sample(3))
    packed = tmp_path / "1.tar.packed"
    packed.write_bytes(compress(plain.read_bytes()))
    expected = samples(plain)
    assert samples(packed) == expected
    reader = tar.Samples(str(packed), tar.open_file)
    next(reader)
    state = reader.get_state()
    reader.close()
    assert samples(packed, state) == expected[1:]
    packed.write_bytes(packed.read_bytes()[:-100])
    with pytest.raises(feeder.SourceError, match="cut short or damaged"):
        samples(packed)


def test_a_resume_reads_nothing_again(tmp_path):
    reads = []

    class File(io.FileIO):
        def readinto(self, buffer):
            reads.append(self.tell())
            return super().readinto(buffer)

        def read(self, size=-1):
            reads.append(self.tell())
            return super().read(size)

    path = write_tar(tmp_path / "1.tar", {f"{i}.bin": bytes(2000) for i in range(50)})
    stream = WebDataset(path, opener=File)
    with feeder.DataLoader(stream, 10) as loader:
        with iter(loader) as batches:
            for _ in range(4):
                next(batches)
            saved = json.loads(json.dumps(batches.get_state()))
        reads.clear()
        with iter(loader) as batches:
            batches.set_state(saved)
            assert next(batches)["__key__"][0] == "40"
    assert min(at for at in reads if at) >= 40 * 2560


# What is damaged.


def test_no_shard_that_is_cut_short_ends_as_if_it_were_whole(tmp_path):
    path = write_tar(tmp_path / "1.tar", sample(1) | sample(2) | sample(3))
    data, whole = path.read_bytes(), samples(path)
    end = data.rstrip(b"\0")
    for size in [0, 1, *range(200, len(end), 211), *range(512, len(end) + 1, 512)]:
        path.write_bytes(data[:size])
        with pytest.raises(feeder.SourceError) as caught:
            samples(path)
        assert caught.value.path == str(path)
        assert 0 <= caught.value.index < len(whole) + 1


def test_the_error_names_the_shard_and_the_last_key(tmp_path):
    path = write_tar(tmp_path / "1.tar", sample(1) | sample(2) | sample(3))
    path.write_bytes(path.read_bytes()[: 5 * 1024])
    with pytest.raises(feeder.SourceError) as caught:
        run(WebDataset(path), 3, num_workers=1)
    assert str(caught.value) == (
        f"record 2 cannot be read from {path}, after the key '0002': it is cut short or damaged, "
        "got ReadError: it ends without the two empty blocks of an end; write the file anew"
    )
    assert caught.value.__cause__.shard == 0
    path.write_bytes(b"no archive" * 100)
    with pytest.raises(feeder.SourceError) as caught:
        samples(path)
    assert str(caught.value) == (
        f"record 0 cannot be read from {path}, after its beginning: it is cut short or damaged, "
        "got InvalidHeaderError: invalid header; write the file anew"
    )


def test_a_state_of_another_file_is_an_error_that_says_where(tmp_path):
    path = write_tar(tmp_path / "1.tar", sample(1) | sample(2))
    for state in ([1, 512], [9, 10**6]):
        with pytest.raises(feeder.SourceError, match=f"after byte {state[1]}, where it was"):
            samples(path, state)


def test_a_shard_that_disappears_is_an_error_that_names_it(tmp_path):
    path = write_tar(tmp_path / "1.tar", sample(1))
    source = WebDataset(path)
    path.unlink()
    with pytest.raises(feeder.SourceError, match="FileNotFoundError") as caught:
        run(source, 1)
    assert caught.value.path == str(path)


def test_zstd_is_told_to_be_decompressed(tmp_path):
    path = tmp_path / "1.tar.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    with pytest.raises(feeder.SourceError, match="it is compressed by zstd; decompress it, or"):
        samples(path)


# What its files become.


def test_files_are_decoded_by_their_suffix(tmp_path):
    array = np.arange(6).reshape(2, 3)
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, array)
    np.savez(npz, x=array, y=array + 1)
    files = {
        "1.jpg": as_file(pixels(1), "JPEG"),
        "1.seg.png": as_file(pixels(2)),
        "1.cls": b" 7\n",
        "1.json": b'{"a": [1, 2]}',
        "1.txt": "ü".encode(),
        "1.npy": npy.getvalue(),
        "1.npz": npz.getvalue(),
        "1.pkl": b"stays",
    }
    path = write_tar(tmp_path / "1.tar", files)
    (batch,) = run(WebDataset(path), 1)
    assert batch["jpg"].shape == (1, 6, 8, 3)
    assert (batch["seg.png"] == pixels(2)).all()
    assert batch["cls"].tolist() == [7]
    assert [leaf.tolist() for leaf in batch["json"]["a"]] == [[1], [2]]
    assert batch["txt"].tolist() == ["ü"]
    assert (batch["npy"] == array).all()
    assert (batch["npz"]["y"] == array + 1).all()
    assert batch["pkl"].tolist() == [b"stays"]
    assert batch["__key__"].tolist() == ["1"]


def test_the_users_decoders_go_before_and_the_longest_suffix_first(tmp_path):
    image = as_file(pixels(1))
    path = write_tar(tmp_path / "1.tar", {"1.png": image, "1.seg.png": image, "1.cls": b"3"})
    small = functools.partial(decode_image, size=(2, 3))
    (batch,) = run(WebDataset(path, decode={".PNG": small, "seg.png": len, "cls": None}), 1)
    assert batch["png"].shape == (1, 2, 3, 3)
    assert batch["seg.png"].tolist() == [len(image)]
    assert batch["cls"].tolist() == [b"3"]
    (batch,) = run(WebDataset(path, decode=False), 1)
    assert batch["png"].tolist() == [image]


def test_what_cannot_be_decoded_names_the_file_and_can_be_skipped(tmp_path):
    path = write_tar(
        tmp_path / "1.tar", sample(1) | {"0002.png": b"", "0002.cls": b"2"} | sample(3)
    )
    with pytest.raises(ValueError, match="cannot be decoded") as caught:
        run(WebDataset(path), 1)
    assert str(caught.value) == (
        "the file 0002.png of a shard cannot be decoded: the image cannot be decoded, got no bytes"
    )
    assert (caught.value.__cause__.shard, caught.value.__cause__.index) == (0, 1)
    assert caught.value.__cause__.stage == "transform"
    batches = run(WebDataset(path), 1, on_bad_record="skip")
    assert [batch["cls"].tolist() for batch in batches] == [[1], [3]]


def test_decoding_takes_no_place_among_the_users_transforms(tmp_path):
    path = texts(tmp_path, 1)
    draw = feeder.RandomMap(lambda record, rng: rng.random())
    same = run(WebDataset(path), 4, transforms=[draw])[0]
    assert (run(WebDataset(path, decode=False), 4, transforms=[draw])[0] == same).all()
    with pytest.raises(TypeError, match=r"`transforms\[0\]` must return the new record"):
        run(WebDataset(path), 4, transforms=[lambda record: None])
    keep = feeder.Filter(lambda record: record["txt"] != "1")
    assert len(run(WebDataset(path), 3, transforms=[keep])[0]["txt"]) == 3
    with pytest.raises(TypeError, match=r"`transforms\[1\]` must return the new record"):
        run(WebDataset(path), 2, transforms=[keep, lambda record: None])


def test_a_transform_may_change_what_was_decoded_in_place(tmp_path):
    path = write_tar(tmp_path / "1.tar", sample(1))

    def darken(record):
        record["png"] //= 2
        return record

    (batch,) = run(WebDataset(path), 1, transforms=[darken])
    assert (batch["png"] == pixels(1) // 2).all()


def test_shuffling_waits_for_no_decoder(tmp_path):
    decoded = []
    path = texts(tmp_path, 1, 40)
    source = WebDataset(path, decode={"txt": lambda data: decoded.append(data) or 0})
    with feeder.DataLoader(source, 4, shuffle=True) as loader, iter(loader) as batches:
        decoded.clear()
        next(batches)
        assert len(decoded) == 4


# Names of shards.


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("a{b}", ["a{b}"]),
        ("a{b,c}d", ["abd", "acd"]),
        ("{a,}x", ["ax", "x"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{0..1}{a,b}", ["0a", "0b", "1a", "1b"]),
        ("{x{1..2},y}", ["x1", "x2", "y"]),
        ("x{", ["x{"]),
        ("{a..c}", ["{a..c}"]),
    ],
)
def test_braces_are_expanded_as_by_a_shell(pattern, names):
    assert list(braces(pattern)) == names


def test_patterns_lists_and_paths_name_shards(tmp_path):
    texts(tmp_path, 12, 1)
    (tmp_path / "[1]{2}.tar").write_bytes((tmp_path / "0.tar").read_bytes())
    numbers = sorted(map(str, range(12)))

    def found(given):
        return [name.rpartition("/")[2][:-4] for name in WebDataset(given).shards]

    assert found(tmp_path / "[1]{2}.tar") == ["[1]{2}"]
    assert found(str(tmp_path / "[0-9]*.tar")) == numbers
    assert found([tmp_path / "3.tar", f"{tmp_path}/{{1,0}}.tar"]) == ["3", "1", "0"]
    assert repr(WebDataset(tmp_path / "3.tar")) == (
        f"WebDataset(1 shards, the first of them '{tmp_path}/3.tar')"
    )


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (5, TypeError, "`shards` must be a path, a pattern, or a list of them, got 5"),
        ([5], TypeError, "`shards` must hold paths and patterns, got 5"),
        ([], ValueError, "`shards` must name at least one shard, got none"),
        ("x*.tar", ValueError, "`shards` must name files, got 'x*.tar', which matches none"),
        ("/x/{1,2}.tar", ValueError, "`shards` must name files that are there, got '/x/1.tar'"),
        ("/", ValueError, "`shards` must name files, got the folder '/'"),
        (
            "https://x/{1,2}.tar",
            ValueError,
            "`shards` must name files here, got 'https://x/1.tar'; give an `opener` that opens it",
        ),
        (
            ["/dev/null"] * 2,
            ValueError,
            "`shards` must name each shard once, got '/dev/null' twice",
        ),
    ],
)
def test_bad_names_are_refused(given, error, text):
    with pytest.raises(error) as caught:
        names_of("shards", given, True)
    assert str(caught.value) == text


def test_bad_arguments_are_refused():
    for options, text in (
        ({"decode": "jpg"}, "`decode` must be True, False or a dict of decoders, got 'jpg'"),
        ({"decode": {"x": 5}}, "`decode['x']` must be callable as decoder(bytes), got 5"),
        ({"decode": {5: len}}, "`decode` must have suffixes for keys, got 5"),
        ({"opener": 5}, "`opener` must be callable as opener(shard), got 5"),
    ):
        with pytest.raises(TypeError) as caught:
            WebDataset("nowhere", **options)
        assert str(caught.value) == text


def test_shards_that_are_elsewhere_are_opened_by_the_user(tmp_path):
    path = write_tar(tmp_path / "1.tar", sample(1) | sample(2))
    remote = {"memory://1.tar": path.read_bytes(), "memory://2.tar": path.read_bytes()}
    source = WebDataset("memory://{1,2}.tar", opener=lambda name: io.BytesIO(remote[name]))
    assert run(source, 4)[0]["cls"].tolist() == [1, 2, 1, 2]


def test_its_files_are_closed_however_it_ends(tmp_path):
    path = write_tar(tmp_path / "1.tar", sample(1) | {"0002.cls": b"no number"} | sample(3))
    opened = []

    def opener(name):
        opened.append(tar.open_file(name))
        return opened[-1]

    run(WebDataset(path, opener=opener, decode=False), 1, transforms=[len])
    with pytest.raises(ValueError, match="cannot be decoded"):
        run(WebDataset(path, opener=opener), 1)
    with feeder.DataLoader(WebDataset(path, opener=opener), 1) as loader:
        batches = iter(loader)
        next(batches)  # and nobody closes it
    path.write_bytes(b"")
    with pytest.raises(feeder.SourceError):
        tar.Samples(str(path), opener)
    assert all(file.closed for file in opened)


def test_packed_documents_are_decoded_as_they_are_without_packing(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(4):
            file = io.BytesIO()
            np.save(file, np.arange(1 + number))
            info = tarfile.TarInfo(f"{number}.npy")
            info.size = len(file.getvalue())
            tar.addfile(info, io.BytesIO(file.getvalue()))
    packed = feeder.pack(feeder.sources.WebDataset(tmp_path / "a.tar"), 10, keys="npy")
    with feeder.DataLoader(packed, 1) as loader:
        (batch,) = loader
    assert sorted(batch["npy"][0].tolist()) == [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]
