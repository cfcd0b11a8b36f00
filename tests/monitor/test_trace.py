"""What the loop waits for stands in a real trace of jax, beside the model's steps."""

import gzip
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import feeder
from feeder.monitor.trace import named

from ..support import rows


@pytest.mark.parametrize(("num_workers", "name"), [(0, "feeder: build"), (2, "feeder: wait")])
def test_waits_and_placements_stand_in_a_trace_with_their_steps(tmp_path, num_workers, name):
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    options = {"num_workers": num_workers, "sharding": sharding}
    with feeder.DataLoader(rows(80), 8, **options) as loader:
        with jax.profiler.trace(tmp_path):
            list(iter(loader))
    (path,) = tmp_path.glob("**/*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps: dict[str, list[int]] = {}
    for event in events:
        if event.get("name", "").startswith("feeder: "):
            steps.setdefault(event["name"], []).append(int(event["args"]["step"]))
    assert steps.keys() == {name, "feeder: place"}
    assert sorted(steps["feeder: place"]) == list(range(10))
    assert 0 in steps[name]


def test_without_jax_calls_are_only_calls_and_jax_stays_out():
    code = (
        "import sys, feeder, numpy as np; from feeder.monitor.trace import named; "
        "assert named()('feeder: wait', 3, divmod, 7, 2) == (3, 1); "
        "batches = iter(feeder.DataLoader(np.arange(8), 4)); next(batches); print(batches.stats());"
        "batches.timeline(); assert 'jax' not in sys.modules; assert 'tqdm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_what_is_called_under_a_name_returns_and_raises_as_without(tmp_path):
    call = named()
    with jax.profiler.trace(tmp_path):
        assert call("feeder: wait", 3, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            call("feeder: wait", 3, divmod, 7, 0)
    assert call("feeder: wait", 3, divmod, 7, 2) == (3, 1)
