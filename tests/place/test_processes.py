"""Real jobs of two processes, four emulated devices each: every process loads its rows alone."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = textwrap.dedent("""
    import json, sys
    import jax
    index, port = int(sys.argv[1]), sys.argv[2]
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index)
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import feeder

    devices = np.array(jax.devices())
    assert len(devices) == 8 and len(jax.local_devices()) == 4
    flat = Mesh(devices, ("data",))
    grid = Mesh(devices.reshape(2, 4), ("data", "model"))
    across = Mesh(devices.reshape(2, 4).T, ("data", "model"))  # the model axis crosses processes
    mixed = Mesh(devices[[0, 4, 1, 5, 2, 6, 3, 7]], ("data",))
    shardings = {
        "data": NamedSharding(flat, P("data")),
        "replicated": NamedSharding(flat, P()),
        "two axes": NamedSharding(grid, P("data", "model")),
        "batch over both": NamedSharding(grid, P(("data", "model"))),
        "model across processes": NamedSharding(across, P("data", "model")),
        "interleaved": NamedSharding(mixed, P("data")),
    }
    source = {"x": np.arange(40 * 4, dtype=np.float32).reshape(40, 4)}
    total = jax.jit(lambda x, w: jnp.einsum("rc,r->", x, w))
    found = {}
    for name, sharding in shardings.items():
        read = []

        def note(record):
            read.append(int(record["x"][0]) // 4)
            return record

        options = {"shuffle": True, "seed": 3, "num_epochs": 2}
        loader = feeder.DataLoader(
            source, 16, transforms=[note], sharding={"x": sharding}, **options
        )
        plain = feeder.DataLoader(source, 16, process_index=0, process_count=1, **options)
        sums, wanted = [], []
        weights = np.arange(1, 17, dtype=np.float32)
        for batch, whole in zip(loader, plain, strict=True):
            assert batch["x"].shape == (16, 4) and batch["x"].sharding == sharding
            for shard in batch["x"].addressable_shards:
                assert np.array_equal(np.asarray(shard.data), whole["x"][shard.index])
            sums.append(float(total(batch["x"], weights)))
            wanted.append(float(np.einsum("rc,r->", whole["x"], weights)))
        assert sums == wanted, (sums, wanted)
        found[name] = [len(read), sums, iter(loader).get_state()]
    print(json.dumps(found))
""")


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.mark.timeout(180)
def test_every_topology_holds_the_same_global_batches(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(index), port],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=150) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in outputs)
    for name in first:
        assert first[name][1:] == second[name][1:]  # the same sums, the same state
        rows = [first[name][0], second[name][0]]
        split = name not in ("replicated", "model across processes")
        assert rows == ([32, 32] if split else [64, 64]), name  # each row once
