"""What this machine has for this process: a container's limits can be below what it sees. No torch, no CUDA."""

import os
from pathlib import Path

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def cores() -> int:
    """Return the cores that this process may use: a container's quota can be below what it sees."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = _CPU_QUOTA.read_text().split()
    except FileNotFoundError:
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def memory_bytes() -> int:
    """Return the memory that is free for this process: a container's limit can be below what the machine has."""
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(facts["MemAvailable"].split()[0]) * 1024
    try:
        limit = _MEMORY_LIMIT.read_text().strip()
    except FileNotFoundError:
        return free
    return free if limit == "max" else min(free, int(limit))


def gpus() -> int:
    """Count the GPUs without asking CUDA, which must not be touched before the workers fork."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
