"""Kinds of sources are imported when they are asked for, so that processes start sooner."""

import subprocess
import sys

import pytest

import feeder.sources

CODE = """
import sys
import feeder, feeder.produce.worker
kinds = ("parquet", "arrow_ipc", "hdf5", "arrayrecord", "huggingface", "images", "webdataset")
assert not [kind for kind in kinds if f"feeder.sources.{kind}" in sys.modules]
assert feeder.sources.Parquet.__name__ == "Parquet"
assert "feeder.sources.parquet" in sys.modules
"""


def test_a_kind_of_source_is_imported_when_it_is_first_asked_for():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_public_source_is_there():
    assert set(feeder.sources.__all__) <= set(dir(feeder.sources))
    for name in feeder.sources.__all__:
        assert getattr(feeder.sources, name) is not None
    with pytest.raises(AttributeError, match=r"'feeder\.sources' has no attribute 'Torch'"):
        feeder.sources.Torch  # noqa: B018
