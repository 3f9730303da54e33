# SPDX-License-Identifier: Apache-2.0
"""Privileges, given up at the daemon's start: the only module that calls prctl(2)."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Collection
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.errors import ErrorCode, UserError

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_READ: Final = 23
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_LAST_CAPABILITY: Final = 63

#: What each is for (capabilities(7)); every other one is dropped.
KEPT: Final = {
    0: "CHOWN: files of a tenant in a user namespace, a new config.json",
    1: "DAC_OVERRIDE: bundles and root filesystems of any owner",
    2: "DAC_READ_SEARCH: the same, for looking",
    3: "FOWNER: the mode of a replaced file",
    5: "KILL: processes of containers, whose users are any: gpushare stop, the audit",
    18: "SYS_CHROOT: setns into a mount namespace",
    19: "SYS_PTRACE: /proc/1/ns/mnt, and /proc/PID of tenants",
    21: "SYS_ADMIN: mount, setns",
    23: "SYS_NICE: this daemon and the scheduler, which gives it up, go before programs that spin",
    27: "MKNOD: CUDA makes the device nodes that it misses, as the probe starts it",
}
#: As Nice= in gpushared.service, which is not there in a container.
PRIORITY: Final = -10
#: What the process that calls NVML keeps of these.
NVML_WORKER: Final = frozenset({21, 27})  # SYS_ADMIN: limits of cgroups, MKNOD: the driver's nodes
#: What the process that calls the checkpoint API keeps: SYS_PTRACE, by which the driver reaches the
#: process through /proc (NVIDIA/cuda-checkpoint issue 58), MKNOD: the driver's nodes.
EVICTION_WORKER: Final = frozenset({19, 27})
_CAPABILITY_VERSION: Final = 0x20080522  # _LINUX_CAPABILITY_VERSION_3


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


class NotRoot(UserError):
    """gpushared needs root."""

    code = ErrorCode.FORBIDDEN


def require_root() -> None:
    """Raise NotRoot for any other user."""
    if os.geteuid() != 0:
        raise NotRoot(
            "gpushared must be root: it mounts for other users' containers; use sudo, or "
            "`gpushare run` without a daemon of your own"
        )


def settle() -> None:
    """Take the priority, and give up the rest; what the kernel refuses is logged."""
    try:
        raise_priority()
    except OSError as error:
        log("priority-raise-failed", "warning", error=str(error))
    try:
        drop_capabilities()
    except OSError as error:
        log("privileges-drop-failed", "warning", error=str(error))


def drop_capabilities() -> None:
    """Give up every capability that is not needed, and the right to gain one by a program.

    For the calling thread and those it starts from now on. OSError where the kernel refuses.
    """
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in KEPT and _is_bounded(capability):
            _call(_PR_CAPBSET_DROP, capability)
    limit_to(KEPT)
    _call(_PR_SET_NO_NEW_PRIVS, 1)
    # Tenants' bundles pass through this memory; no debugger of another user reads it.
    _call(_PR_SET_DUMPABLE, 0)


def limit_to(kept: Collection[int]) -> None:
    """Take every other capability out of the permitted and the effective set (capget(2)).

    OSError where the kernel refuses.
    """
    header = _Header(_CAPABILITY_VERSION, 0)
    sets = (_Sets * 2)()
    libc = _libc()
    if libc.capget(ctypes.byref(header), sets) != 0:
        raise OSError(ctypes.get_errno(), "capget failed")
    for word in range(2):
        mask = sum(1 << (number % 32) for number in kept if number // 32 == word)
        sets[word].permitted &= mask
        sets[word].effective = sets[word].permitted
        sets[word].inheritable = 0
    if libc.capset(ctypes.byref(header), sets) != 0:
        raise OSError(ctypes.get_errno(), "capset failed")


def raise_descriptors() -> int:
    """Allow as many descriptors as the hard limit does, and return how many those are."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def raise_priority() -> None:
    """Go before programs that spin; OSError where the kernel refuses.

    For the calling thread and those it starts from now on. A container's start waits for this
    process, which decides for all of them: at an equal share of a processor, 200 starts at once,
    each with a runtime of its own, would leave it too little to answer in time.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) > PRIORITY:
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it is gone."""
    _call(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _is_bounded(capability: int) -> bool:
    return int(_libc().prctl(_PR_CAPBSET_READ, capability, 0, 0, 0)) == 1


def _call(option: int, value: int) -> None:
    if _libc().prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl({option}, {value})")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
