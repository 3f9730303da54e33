# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's params file in containers: covered, so that their root makes no device nodes.

NVIDIA's libraries, run by root with CAP_MKNOD, create the nodes of any card, unless
/proc/driver/nvidia/params says `ModifyDeviceFiles: 0` (NVIDIA/nvidia-modprobe,
modprobe-utils/nvidia-modprobe-utils.c). Runtimes refuse mounts below /proc in a spec, so a
read-only copy that says so is mounted at bind, before a program of the image runs.

The root of a container may be a FUSE file system that does not answer. So threads of their own make
the mounts, and a start waits at most _WAIT_SECONDS for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import Call, Loop, Task, WorkerPool
from gpushare.host import mounts
from gpushare.oci import rootfs
from gpushare.oci.bounded_read import replace_file
from gpushare.oci.spec import Spec

PARAMS: Final = Path("/proc/driver/nvidia/params")
_NAME: Final = "ModifyDeviceFiles:"
_OFF: Final = f"{_NAME} 0"
_WAIT_SECONDS: Final = 1.0
_MOST: Final = 4  # threads
_FLAGS: Final = mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
_NO_LINKS: Final = rootfs.RESOLVE_NO_SYMLINKS | rootfs.RESOLVE_NO_MAGICLINKS


class DriverParams:
    """Covers `path`, a file below /proc, in containers, with a copy that is kept at `copy`.

    Which containers are to have it is known at create, and kept in memory only: a container that
    was created before a restart of gpushared, and is bound after it, does not get it.
    """

    def __init__(self, copy: Path, loop: Loop, path: Path = PARAMS) -> None:
        self._copy, self._loop, self._path = copy, loop, path
        self._name = str(path).removeprefix("/proc/")
        self._is_needed = False
        self._awaited: set[str] = set()  # keys of tenants that are to have it at their bind
        self._begun: dict[Task[None], float] = {}
        self._threads = WorkerPool("params", _MOST)

    def prepare(self) -> None:
        """Make the copy, unless the host has no such file, or one that says the same."""
        self._is_needed = False
        with suppress(OSError):  # without a copy, each container that was to have it is logged
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
            self._is_needed = _OFF not in lines
            kept = [line for line in lines if not line.startswith(_NAME)]
            if self._is_needed:
                replace_file(self._copy, "\n".join([*kept, _OFF, ""]).encode(), 0o444)

    def note_create(self, key: str, spec: Spec) -> None:
        """Note whether the container of tenant `key` is to have it."""
        self.forget(key)
        if self._is_needed and may_make_nodes(spec):
            self._awaited.add(key)

    def forget(self, key: str) -> None:
        """Forget what was noted at create."""
        self._awaited.discard(key)

    def at_bind(self, key: str, pidfd: int) -> Callable[[Call], None] | None:
        """Return what starts to cover it for the init process of `pidfd`; None: nothing is to be.

        What is returned calls its argument at the end, or when the time is over, maybe both.
        """
        if key not in self._awaited:
            return None
        self.forget(key)
        overdue = time.monotonic() - _WAIT_SECONDS
        if sum(begun < overdue for begun in list(self._begun.values())) >= _MOST:
            _leave_out(key, "the file systems of other containers do not answer")
            return None
        return partial(self._start, key, os.dup(pidfd))

    def _start(self, key: str, process: int, done: Call) -> None:
        task = Task(lambda: self._cover(process))
        self._begun[task] = time.monotonic()

        def run() -> None:
            task.run()
            del self._begun[task]
            os.close(process)
            if task.error is not None:
                _leave_out(key, str(task.error))
            done()
            if isinstance(task.error, SystemExit):
                raise task.error

        def give_up() -> None:
            if not task.wait(0):
                _leave_out(key, "the file system of the container does not answer")
                done()

        self._threads.submit(run)
        self._loop.after(_WAIT_SECONDS, give_up)

    def _cover(self, process: int) -> None:
        """Cover the file in the mount namespace of a process, where no link is followed."""
        with ExitStack() as ends:

            def own(descriptor: int) -> int:
                ends.callback(os.close, descriptor)
                return descriptor

            mounts.unshare(mounts.CLONE_FS)
            home = own(os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
            copy = own(mounts.clone(self._copy))
            mounts.restrict(copy, _FLAGS)
            mounts.enter_namespace(process)
            ends.callback(_return_to, home)
            proc = own(rootfs.openat2(-1, "/proc", os.O_PATH, _NO_LINKS))
            resolve = _NO_LINKS | rootfs.RESOLVE_NO_XDEV
            target = own(rootfs.openat2(proc, self._name, os.O_PATH, resolve))
            mounts.require_procfs(target)
            mounts.move(copy, target)


def _return_to(home: int) -> None:
    """Return to the daemon's mount namespace; a thread that cannot ends, and serves no other."""
    try:
        mounts.enter_namespace(home)
    except OSError as error:
        raise SystemExit(f"cannot leave a container's mount namespace: {error}") from error


def _leave_out(key: str, why: str) -> None:
    log("driver-params-not-covered", "warning", tenant=key, error=why)


def may_make_nodes(spec: Spec) -> bool:
    """Whether root of the container may make device nodes, and the file can be covered for it.

    A container with CAP_SYS_ADMIN could uncover it. Without masked paths, a user namespace in the
    container could mount procfs no more if a part of it were covered (mount_too_revealing,
    fs/namespace.c). A mount namespace or a /proc that is not the container's own may be the host's,
    and what has an SELinux label may not read the copy.
    """
    own_proc = [
        mount.get("type") for mount in spec.entries("mounts") if mount.get("destination") == "/proc"
    ]
    return (
        spec.has_capability("CAP_MKNOD")
        and not spec.may_mount()
        and not spec.is_privileged()
        and spec.namespaces("mount") == [""]
        and not spec.namespaces("user")
        and own_proc == ["proc"]
        and bool(spec.at("linux", "maskedPaths"))
        and not spec.mount_label
    )
