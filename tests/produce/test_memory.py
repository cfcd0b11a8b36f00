"""The memory limit: the least of the machine's and of all cgroups around this process."""

import os

import pytest

from feeder.produce.memory import memory_limit_bytes

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def system(tmp_path, cgroup, limits):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for path, text in limits.items():
        file = tmp_path / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "5000000"}, 5_000_000),
        ("0::/a/b\n", {"a/b/memory.max": "4000000", "a/memory.max": "5000000"}, 4_000_000),
        ("0::/\n", {"memory.max": "3000000"}, 3_000_000),
        ("0::/a\n", {"a/memory.max": "max"}, MACHINE),
        ("7:memory:/x\n4:cpu:/\n", {"memory/x/memory.limit_in_bytes": "2000000"}, 2_000_000),
        ("7:cpu,memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, MACHINE),
        ("", {}, MACHINE),
    ],
)
def test_the_tightest_limit_holds(tmp_path, cgroup, limits, expected):
    assert memory_limit_bytes(system(tmp_path, cgroup, limits)) == expected


def test_without_proc_the_machine_is_the_limit(tmp_path):
    assert memory_limit_bytes(tmp_path) == MACHINE
