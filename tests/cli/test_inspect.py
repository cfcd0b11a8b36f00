"""`feeder inspect`: what it prints, and the picture it writes."""

import builtins
import re

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from feeder.cli import images, inspect, main
from feeder.produce.cpus import available_cpus

HERE = "tests/cli/loaders.py"
CPUS = available_cpus()
MACHINE = f"this machine has {CPUS} CPU{'s' if CPUS > 1 else ''}"


def shown(name, capsys):
    assert main(["inspect", f"{HERE}:{name}"]) == 0
    out, errors = capsys.readouterr()
    assert errors == ""
    return re.sub(r"after [\d.]+ .?s\n", "after 1 ms\n", out)


def test_it_shows_the_spec_the_plan_and_the_first_batch(capsys):
    assert (
        shown("images", capsys)
        == f"""\
{HERE}:images: batches of

  leaf             shape         dtype        size  lies on
  batch['digit']   (6, 8, 6)     int32    1.12 KiB  the host
  batch['name']    (6,)          object             the host
  batch['pixels']  (6, 8, 6, 3)  uint8       864 B  the host
  batch['planes']  (6, 3, 8, 6)  float32  3.38 KiB  the host
  batch['weight']  (6,)          float32      24 B  the host

plan

  records  24
  steps    4: 1 epoch of 4
  order    that of the source
  batch    6 rows; the last of an epoch: 'drop'
  batch 0  records 0, 1, 2, 3, 4, 5
  recipe   read → stack
  workers  1 process; {MACHINE}
  memory   5.41 KiB for each batch; 16 are built ahead: 86.6 KiB

first batch, after 1 ms

  leaf                   min  max   mean  NaN
  batch['digit']           0  254    126    0
  batch['name']    'image 0'
  batch['pixels']          0  255    124    0
  batch['planes']          0    1  0.488    0
  batch['weight']        0.5  0.5    0.5    2

batch['pixels'] holds images: --png grid.png draws them
"""
    )


def test_it_tells_what_is_not_known_of_a_stream_and_of_live_data(capsys):
    out = shown("stream", capsys)
    assert "  records  not known beforehand; a stream of 2 shards, 2 side by side\n" in out
    assert "  steps    not known beforehand: the stream has no `length`\n" in out
    assert "  order    shuffled, seed 0\n" in out
    assert "  batch 0  whatever comes first\n" in out
    out = shown("live_anew", capsys)
    assert "  records  live: a function gives each batch\n" in out
    assert "  batch['count']  (4,)   int64  32 B  the host\n" in out
    assert "  batch['count']    1    1     1    0\n" in out


def test_it_tells_of_devices_and_of_batches_of_all_sizes(capsys):
    out = shown("sharded", capsys)
    assert "  batch['image']  (8, 3, 4)  float32  384 B  8 devices, P('data')\n" in out
    out = shown("of_odd_batches", capsys)
    assert "  batch    as many rows as the batch_sampler says\n" in out
    assert "  order    batch_sampler: list, seed 0\n" in out
    assert "  batch 0  records 0\n" in out


def test_the_picture_shows_the_first_leaf_that_looks_like_images(tmp_path, capsys):
    path = tmp_path / "grid.png"
    assert main(["inspect", f"{HERE}:images", "--png", str(path)]) == 0
    assert capsys.readouterr().out.endswith(f"\n{path}: 6 images of batch['pixels']\n")
    picture = np.asarray(Image.open(path))
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 6, 3), np.uint8)
    assert picture.shape == (2 * 64 + 3 * 2, 3 * 48 + 4 * 2, 3)  # each pixel is enlarged to 8 by 8
    assert np.array_equal(picture[2:66:8, 2:50:8], pixels[0])
    assert np.array_equal(picture[68:132:8, 52:100:8], pixels[4])


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        ("planes", "batch['planes'], values 0 to 1"),
        ("batch['planes']", "batch['planes'], values 0 to 1"),
        ("digit", "batch['digit'], values 0 to 255"),
    ],
)
def test_a_leaf_can_be_chosen(leaf, said, tmp_path, capsys):
    path = tmp_path / "grid.png"
    assert main(["inspect", f"{HERE}:images", "--png", str(path), "--leaf", leaf]) == 0
    assert capsys.readouterr().out.endswith(f"\n{path}: 6 images of {said}\n")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "images",
            ["--leaf", "pixels"],
            "`--leaf` must be given together with `--png`, for which it chooses",
        ),
        (
            "images",
            ["--png", "{folder}/none/x.png"],
            "`--png` must lie in a folder that is there, got '{folder}/none/x.png'",
        ),
        ("images", ["--png", "{folder}"], "`--png` must name a file, got the folder '{folder}'"),
        (
            "images",
            ["--png", "{folder}/x.png", "--leaf", "nothing"],
            "`--leaf` must name one of batch['digit'], batch['name'], batch['pixels'], "
            "batch['planes'], batch['weight'], got 'nothing'",
        ),
        (
            "images",
            ["--png", "{folder}/x.png", "--leaf", "name"],
            "`--leaf` must name a leaf of images, of shape (rows, height, width), (rows, height, "
            "width, 1, 3 or 4) or (rows, 1, 3 or 4, height, width), got batch['name'] object(6,)",
        ),
        (
            "ready",
            ["--png", "{folder}/x.png"],
            "`--png` needs a leaf of shape (rows, height, width, 1, 3 or 4) or (rows, 1, 3 or 4, "
            "height, width), got batch['image'] float32(8, 3, 4), batch['index'] int32(8,); name "
            "one of two dimensions with --leaf",
        ),
    ],
)
def test_a_picture_that_cannot_be_is_refused(name, options, message, tmp_path, capsys):
    options = [option.format(folder=tmp_path) for option in options]
    assert main(["inspect", f"{HERE}:{name}", *options]) == 2
    expected = f"feeder inspect: error: {message.format(folder=tmp_path)}\n"
    assert capsys.readouterr().err == expected
    assert list(tmp_path.iterdir()) == []


def test_without_pillow_it_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    imported = builtins.__import__

    def without(name, *arguments):
        if name == "PIL":
            raise ImportError("no PIL here")
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["inspect", f"{HERE}:images", "--png", str(tmp_path / "x.png")]) == 2
    assert capsys.readouterr().err == (
        "feeder inspect: error: `--png` needs the package pillow: "
        "pip install 'jax-feeder[images]'\n"
    )


@pytest.mark.parametrize(
    ("values", "expected", "said"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255], ", values 0 to 1"),
        ([0.0, 7.4, 255.0], [0, 7, 255], ", values 0 to 255"),
        ([-1.0, 0.0, 1.0], [0, 128, 255], ", values -1 to 1"),
        ([-1.0, np.nan, np.inf], [0, 0, 0], ", values -1 to -1"),
        ([np.nan] * 3, [0, 0, 0], ", values 0 to 1"),
    ],
)
def test_values_of_any_range_become_bytes(values, expected, said):
    images_, words = images.as_bytes(np.array(values, np.float32).reshape(1, 1, 3, 1))
    assert (images_.reshape(-1).tolist(), words) == (expected, said)


def test_one_image_makes_a_picture_of_one():
    assert images.grid(np.zeros((1, 300, 200, 1), np.uint8)).shape == (304, 204, 3)
    assert images.grid(np.zeros((5, 10, 500, 4), np.uint8)).shape == (5 * 12 + 2, 504, 4)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([True, False]), ("0", "1", "0.5", "0")),
        (np.array([2**63], np.uint64), (f"{2**63:,}",) * 2 + (f"{2**63:,}", "0")),
        (np.array([1.5, np.nan], np.float16), ("1.5", "1.5", "1.5", "1")),
        (np.array([np.nan, np.nan]), ("", "", "", "2")),
        (np.array([np.inf, -np.inf, 1.0]), ("-inf", "inf", "nan", "0")),
        (np.array([0.5, 2], jnp.bfloat16), ("0.5", "2", "1.25", "0")),
        (np.zeros((0, 3)), ("", "", "", "")),
        (np.array(["a" * 50], object), ("'" + "a" * 36 + "...", "", "", "")),
        (np.zeros(1, [("x", int)]), ("np.void((0,), dtype=[('x', '<i8')])", "", "", "")),
    ],
)
def test_leaves_of_any_type_are_summed_up(values, expected):
    assert inspect.values_of(values) == expected
