"""Folders of images: what counts, in which order, and how it is decoded."""

import io
import logging
import os
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import feeder
from feeder.produce import payload
from feeder.sources import ImageFolder, decode_image, listing
from tests.sources.makers.packages import as_file, pixels
from tests.support import run

BLACK = as_file(np.zeros((4, 4, 3), np.uint8))


def write(root, *names, data=BLACK):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def paths_of(folder):
    return [folder[index]["path"] for index in range(len(folder))]


# What counts, and in which order.


def test_classes_are_the_folders_by_name_and_files_follow_by_path(tmp_path):
    write(tmp_path, "b/2.png", "b/10.png", "a/z.png", "a/deep/er/1.png", "a-b/1.png", "a/deep.png")
    folder = ImageFolder(tmp_path, paths=True)
    assert folder.classes == ["a", "a-b", "b"]
    assert paths_of(folder) == [
        "a/deep.png",
        "a/z.png",
        "a/deep/er/1.png",
        "a-b/1.png",
        "b/10.png",
        "b/2.png",
    ]
    assert folder.labels.tolist() == [0, 0, 0, 1, 2, 2]
    assert [folder[index]["label"] for index in range(6)] == [0, 0, 0, 1, 2, 2]
    assert folder.labels.dtype == folder[0]["label"].dtype == np.int32
    assert folder.path(3) == str(tmp_path / "a-b/1.png")
    assert repr(folder) == f"ImageFolder({str(tmp_path)!r}: 6 images, 3 classes)"


def test_no_order_of_the_file_system_changes_it(tmp_path, monkeypatch):
    write(tmp_path, *(f"{a}/{b}/{c}.png" for a in "xy" for b in "pq" for c in "321"))
    expected = paths_of(ImageFolder(tmp_path, paths=True))
    scandir = os.scandir

    class Backwards:
        def __init__(self, path):
            with scandir(path) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_):
            return

    monkeypatch.setattr(listing.os, "scandir", Backwards)
    assert paths_of(ImageFolder(tmp_path, paths=True)) == expected == sorted(expected)


def test_extensions_count_in_any_case_and_hidden_files_and_others_do_not(tmp_path):
    write(tmp_path, "a/1.PNG", "a/2.JpEg", "a/.3.png", "a/.hidden/4.png", "a/notes.txt", "a/png")
    write(tmp_path, ".git/5.png", "6.png", "a/.png", "a/ü é.webp")
    folder = ImageFolder(tmp_path, paths=True)
    assert paths_of(folder) == ["a/1.PNG", "a/2.JpEg", "a/ü é.webp"]
    assert folder.classes == ["a"]


def test_names_that_are_no_text_are_read(tmp_path):
    (tmp_path / "a").mkdir()
    with open(os.fsencode(tmp_path) + b"/a/\xff.png", "wb") as file:
        file.write(BLACK)
    assert ImageFolder(tmp_path)[0]["image"].shape == (4, 4, 3)


def test_links_are_followed_but_not_in_circles(tmp_path):
    write(tmp_path, "elsewhere/1.png", "root/a/2.png")
    (tmp_path / "root/a/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root/a/3.png").symlink_to(tmp_path / "elsewhere/1.png")
    folder = ImageFolder(tmp_path / "root", paths=True)
    assert paths_of(folder) == ["a/2.png", "a/3.png", "a/linked/1.png", "b/1.png"]
    (tmp_path / "root/a/circle").symlink_to(tmp_path / "root/a")
    with pytest.raises(ValueError, match="link to a folder that the link lies in") as caught:
        ImageFolder(tmp_path / "root")
    assert str(caught.value).endswith(f"got {str(tmp_path / 'root/a/circle')!r}")


def test_a_link_that_leads_nowhere_is_an_error_where_it_is_read(tmp_path):
    write(tmp_path, "a/1.png")
    (tmp_path / "a/2.png").symlink_to(tmp_path / "gone")
    folder = ImageFolder(tmp_path)
    assert len(folder) == 2
    with pytest.raises(feeder.SourceError, match="No such file"):
        folder[1]


def test_a_class_without_images_keeps_its_number_and_is_told(tmp_path, caplog):
    write(tmp_path, "b/1.png", "d/1.png")
    for empty in ("a", "c", "e"):
        (tmp_path / empty).mkdir()
    with caplog.at_level(logging.WARNING, "feeder"):
        folder = ImageFolder(tmp_path)
    assert folder.classes == ["a", "b", "c", "d", "e"]
    assert [folder[index]["label"] for index in range(2)] == folder.labels.tolist() == [1, 3]
    assert caplog.messages == [f"3 classes of {tmp_path} have no image: ['a', 'c', 'e']"]


def test_a_folder_without_classes_has_no_labels(tmp_path):
    write(tmp_path, "2.png", "1.png", "more/3.png")
    folder = ImageFolder(tmp_path, labels=False, paths=True)
    assert paths_of(folder) == ["1.png", "2.png", "more/3.png"]
    assert folder[0].keys() == {"image", "path"}
    assert folder.classes == []
    assert len(folder.labels) == 0


def test_a_loader_of_the_users_reads_any_files(tmp_path):
    for number in range(4):
        (tmp_path / "a").mkdir(exist_ok=True)
        np.save(tmp_path / f"a/{number}.npy", np.full(3, number))
    folder = ImageFolder(tmp_path, loader=np.load, extensions=[".NPY"])
    assert run(folder, 4)[0]["image"][:, 0].tolist() == [0, 1, 2, 3]


def test_a_loader_that_returns_nothing_is_an_error(tmp_path):
    write(tmp_path, "a/1.png")
    with pytest.raises(TypeError, match=r"`loader` must return the image, got None for /.*1\.png"):
        ImageFolder(tmp_path, loader=lambda path: None)[0]


def test_indices_count_from_both_ends_and_no_further(tmp_path):
    write(tmp_path, "a/1.png", "b/1.png")
    folder = ImageFolder(tmp_path)
    assert folder[np.int64(-1)]["label"] == 1
    for index in (2, -3):
        with pytest.raises(IndexError) as caught:
            folder[index]
        assert str(caught.value) == (
            f"a record's index must be below the number of records, 2, got {index}"
        )


@given(st.lists(st.lists(st.binary(max_size=9), max_size=4), max_size=6))
def test_names_are_those_that_were_packed(groups):
    names = listing.Names(groups)
    assert list(names) == [name for group in groups for name in group]


def test_the_names_of_many_files_reach_workers_without_a_copy(tmp_path):
    write(tmp_path, "a/1.png")
    folder = ImageFolder(tmp_path)
    found = ((b"a/%06d" % n, [b"%08d.jpg" % i for i in range(100)]) for n in range(500))
    folder._files = listing.Listing(found)
    fd, copied = payload.pack(folder)
    os.close(fd)
    assert copied < 16_000
    assert folder._files[49_999] == "a/000499/00000099.jpg"
    assert len(pickle.dumps(folder)) < 50_000 * 25


# What cannot be.


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"root": 5}, TypeError, "`root` must be a path, got 5"),
        ({"mode": "HSV"}, ValueError, "`mode` must be 'RGB', 'RGBA', 'L' or None, got 'HSV'"),
        ({"size": 4}, TypeError, "`size` must be (height, width) in pixels, got 4"),
        ({"size": (4, 0)}, ValueError, "`size[1]` must be an integer of at least 1, got 0"),
        ({"labels": 1}, TypeError, "`labels` must be True or False, got 1"),
        ({"loader": 1}, TypeError, "`loader` must be callable as loader(path), got 1"),
        (
            {"loader": len, "size": (2, 2)},
            ValueError,
            "`loader` must be given without `mode` and `size`, which are Pillow's, got 'RGB' and "
            "(2, 2)",
        ),
        ({"extensions": "png"}, TypeError, "`extensions` must be a sequence of str, got 'png'"),
        (
            {"extensions": []},
            ValueError,
            "`extensions` must name at least one, and no empty one, got []",
        ),
    ],
)
def test_bad_arguments_are_refused(options, error, text):
    with pytest.raises(error) as caught:
        ImageFolder(**{"root": "nowhere"} | options)
    assert str(caught.value) == text


def test_a_folder_that_is_not_there_or_has_no_class_or_image_is_refused(tmp_path):
    missing = tmp_path / "missing"
    for root, options, text in (
        (missing, {}, f"`root` must be a folder that is there, got {str(missing)!r}"),
        (
            tmp_path,
            {},
            f"`root` must hold a folder for each class, got none in {str(tmp_path)!r}; set "
            "`labels=False` for images without classes",
        ),
        (
            tmp_path,
            {"labels": False, "extensions": ["png", ".jpg"]},
            f"`root` must hold files with the extension png or jpg, got none in {str(tmp_path)!r}",
        ),
    ):
        with pytest.raises(ValueError, match="`root` must") as caught:
            ImageFolder(root, **options)
        assert str(caught.value) == text


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    from feeder.sources import pillow

    pillow.package.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError) as caught:
        ImageFolder("nowhere")
    assert str(caught.value) == (
        "feeder.sources.ImageFolder needs the package pillow: pip install 'jax-feeder[images]'"
    )


def test_images_that_cannot_be_decoded_name_file_and_record(tmp_path):
    whole = as_file(pixels(1, 64, 64), "JPEG")
    write(tmp_path, "a/1.jpg", data=whole)
    write(tmp_path, "a/2.jpg", data=whole[:-200])
    write(tmp_path, "a/3.jpg", data=b"")
    write(tmp_path, "a/4.jpg", data=b"<html>not found</html>")
    folder = ImageFolder(tmp_path)
    said = {}
    for index in (1, 2, 3):
        with pytest.raises(feeder.SourceError) as caught:
            folder[index]
        assert caught.value.path == folder.path(index)
        assert caught.value.index == index
        said[index] = str(caught.value)
    end = "; write the file anew, or set `on_bad_record`"
    assert said[1].startswith(
        f"record 1 cannot be read from {tmp_path}/a/2.jpg: the image cannot be decoded, got "
        "OSError: image file is truncated ("
    )
    assert said[2] == (
        f"record 2 cannot be read from {tmp_path}/a/3.jpg: the image cannot be decoded, got no "
        f"bytes{end}"
    )
    assert said[3] == (
        f"record 3 cannot be read from {tmp_path}/a/4.jpg: the image cannot be decoded, got no "
        f"format that Pillow knows{end}"
    )


def test_bad_images_can_be_left_out_or_replaced(tmp_path):
    write(tmp_path, *(f"a/{number}.png" for number in range(8)))
    write(tmp_path, "a/3.png", data=BLACK[:40])
    folder = ImageFolder(tmp_path)
    assert len(run(folder, 8, on_bad_record="skip")[0]["label"]) == 7
    with feeder.DataLoader(folder, 8, on_bad_record="replace") as loader, iter(loader) as batches:
        assert len(next(batches)["label"]) == 8
        (bad,) = batches.stats().bad_records
    assert bad.index == 3
    assert bad.error.startswith("SourceError: record 3 cannot be read from")


def test_a_bad_image_is_an_error_of_its_type_that_says_where(tmp_path):
    write(tmp_path, "a/1.png", data=b"no")
    with pytest.raises(feeder.SourceError) as caught:
        run(ImageFolder(tmp_path), 1, num_workers=1)
    assert isinstance(caught.value.__cause__, feeder.RecordError)
    assert caught.value.__cause__.index == 0


# How it is decoded.


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_the_orientation_of_exif_is_applied(kind):
    upright = np.zeros((24, 40, 3), np.uint8)
    upright[:12, :20] = 250  # its upper left
    turns = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }
    for orientation, stored in turns.items():
        exif = Image.Exif()
        exif[274] = orientation
        data = as_file(np.ascontiguousarray(stored), kind, exif=exif)
        for size in (None, (12, 20)):
            found = decode_image(data, size=size).astype(int)
            expected = upright if size is None else upright[::2, ::2]
            assert found.shape == expected.shape
            assert np.abs(found - expected).mean() < 8, orientation


def test_modes_are_converted():
    rgb = pixels(3, 16, 16)
    image = Image.fromarray(rgb)
    for stored, options in {
        "L": {},
        "LA": {},
        "P": {},
        "1": {},
        "RGBA": {},
        "CMYK": {"kind": "TIFF"},
        "YCbCr": {"kind": "TIFF"},
    }.items():
        file = io.BytesIO()
        image.convert(stored).save(file, options.get("kind", "PNG"))
        for mode, channels in {"RGB": 3, "RGBA": 4, "L": 1}.items():
            found = decode_image(file.getvalue(), mode=mode)
            assert found.shape == (16, 16, channels)
            assert found.dtype == np.uint8
    palette = image.convert("P")
    file = io.BytesIO()
    palette.save(file, "PNG")
    assert (decode_image(file.getvalue()) == np.asarray(palette.convert("RGB"))).all()
    assert (decode_image(file.getvalue(), mode=None) == np.asarray(palette)).all()
    file = io.BytesIO()
    palette.save(file, "PNG", transparency=bytes(range(256)))  # of which Pillow would warn
    assert (decode_image(file.getvalue()) == np.asarray(palette.convert("RGB"))).all()
    assert decode_image(file.getvalue(), mode="RGBA")[..., 3].max() > 0


def test_grey_of_16_bits_keeps_its_upper_8():
    values = np.array([[0, 255, 256, 40_000, 65_535]], np.uint16)
    for kind in ("PNG", "TIFF"):
        data = as_file(values, kind)
        assert decode_image(data, mode="L")[..., 0].tolist() == [[0, 0, 1, 156, 255]]
        assert decode_image(data)[0, 3].tolist() == [156, 156, 156]
        assert (decode_image(data, mode=None) == values).all()


def test_pixels_of_32_bits_are_an_error_unless_they_are_wanted():
    data = as_file(np.array([[0.25, 1e6]], np.float32), "TIFF")
    assert decode_image(data, mode=None).tolist() == [[0.25, 1e6]]
    with pytest.raises(ValueError, match="pixels of 32 bits") as caught:
        decode_image(data)
    assert str(caught.value) == (
        "the image cannot be decoded, got ValueError: pixels of 32 bits, which have no place in 8; "
        "use `mode=None`"
    )


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_frame_counts(kind):
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    file = io.BytesIO()
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    found = decode_image(file.getvalue()).astype(int)
    assert np.abs(found - [255, 0, 0]).max() < 6


def test_images_are_resized_to_height_and_width():
    smooth = np.linspace(0, 255, 64 * 48).reshape(48, 64).astype(np.uint8)
    rgb = np.stack([smooth] * 3, -1)
    for kind in ("PNG", "JPEG"):
        for size in ((12, 16), (48, 64), (96, 128), (7, 50), [20, 30]):
            found = decode_image(as_file(rgb, kind), size=size)
            assert found.shape == (*size, 3)
            assert found[0].mean() < 30 < 220 < found[-1].mean()


def test_a_decompression_bomb_is_an_error(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match="DecompressionBombError: Image size \\(1024 pixels\\)"):
        decode_image(as_file(pixels(1, 32, 32)))


def test_the_same_bytes_make_the_same_error():
    texts = set()
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be decoded") as caught:
            decode_image(b"\x89PNG nothing")
        texts.add(str(caught.value))
    assert len(texts) == 1
