"""Real jobs of several processes on this machine, four emulated devices each."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

PRELUDE = textwrap.dedent("""
    import json, sys
    import jax
    index, count, port = (int(argument) for argument in sys.argv[1:4])
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=index)
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import feeder

    devices = np.array(jax.devices())
    assert len(devices) == 4 * count and len(jax.local_devices()) == 4
""")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def run_job(
    script: str, num_processes: int, *arguments: str, limit_s: float = 100
) -> list[tuple[int, str, str]]:
    """Runs a script in every process of a job; exit code, output and errors of each."""
    return run(PRELUDE + textwrap.dedent(script), num_processes, *arguments, limit_s=limit_s)


def run(
    code: str, num_processes: int, *arguments: str, num_devices: int = 4, limit_s: float = 100
) -> list[tuple[int, str, str]]:
    """Runs Python in several processes, which get index, count and a port as arguments."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(index), str(num_processes), port, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(num_processes)
    ]
    try:
        outputs = [process.communicate(timeout=limit_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [
        (process.returncode, out, errors)
        for process, (out, errors) in zip(processes, outputs, strict=True)
    ]


def last_lines(results: list[tuple[int, str, str]]) -> list[str]:
    """The last line of each process's output; all must have ended well."""
    assert [code for code, _, _ in results] == [0] * len(results), results
    return [out.splitlines()[-1] for _, out, _ in results]
