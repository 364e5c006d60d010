"""What this process may use of the CPU: how many of them, and which instructions."""

from __future__ import annotations

import functools
import math
import os
import platform
from pathlib import Path

__all__ = ["has_int8_dot", "instructions", "usable_cpus"]

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_CPU_INFO = Path("/proc/cpuinfo")
_INTERESTING = (
    "avx2",
    "avx512f",
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimddp",
    "i8mm",
)


def usable_cpus() -> int:
    """CPUs that this process may keep busy: its affinity mask, capped by the cgroup's quota."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        count = os.cpu_count() or 1
    try:
        quota, period = _CGROUP_QUOTA.read_text().split()
        count = min(count, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        pass
    return max(1, count)


@functools.cache
def instructions() -> tuple[str, ...] | None:
    """Vector instructions of the CPU that matter here, in Linux's names; None if unknown."""
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            flags = set(value.split())
            return tuple(name for name in _INTERESTING if name in flags)
    return None


def has_int8_dot(flags: tuple[str, ...] | None) -> bool:
    """Whether u8 x s8 products can be summed without int16 saturation.

    x86 without VNNI (or AMX) does it by ``vpmaddubsw``, which saturates; other
    architectures do not. Unknown flags on x86 count as no.
    """
    if platform.machine().lower() not in ("x86_64", "amd64", "i686"):
        return True
    return not {"avx512_vnni", "avx_vnni", "amx_int8"}.isdisjoint(flags or ())
