# SPDX-License-Identifier: Apache-2.0
"""The start of a container with a share of a GPU over crun, beside crun alone and beside runc."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare.install import install
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.program import find

from .container import Lives
from .create import BUDGET_MS, CACHE, Layered, read_cache, start, was_injected
from .result import Result
from .turns import Times, take

ROUNDS = 30
UNIFIED = Path("/sys/fs/cgroup/unified")
_CLONE_NEWNS = 0x00020000  # sched.h


def measure() -> Iterator[Result]:
    """Create and start the same container by each runtime, alone and behind the launcher."""
    with _one_hierarchy(), Stack() as stack:
        start(stack)
        plain = Bundle(stack, files={str(CACHE): read_cache()})
        asking = Bundle(stack, quota={"memory": "4GiB"}, files={str(CACHE): read_cache()})
        without, layered = Layered(plain), Layered(asking)
        variants: dict[str, Callable[[], Times]] = {}
        for name in ("runc", "crun"):
            runtime = Path(find(name))
            launcher = install(stack.root / f"lib-{name}", runtime=runtime, socket=stack.socket)
            variants[name] = _lived(stack, plain, without, runtime)
            variants[f"{name} gpushare"] = _lived(stack, asking, layered, launcher.launcher)
        series = take(variants, ROUNDS)
        was_injected(asking)
    yield series.compare(
        "create", "crun gpushare", "crun", name="create with a GPU over crun", budget=BUDGET_MS
    )
    yield series.compare(
        "create", "crun", "runc", name="create by crun beside runc, no GPU", budget=None
    )
    yield series.compare(
        *("create", "crun gpushare", "runc gpushare"),
        name="create with a GPU, crun beside runc",
        budget=None,
    )


def _lived(stack: Stack, bundle: Bundle, layered: Layered, program: Path) -> Callable[[], Times]:
    # A runtime knows only the containers that it made itself.
    folder = Path(tempfile.mkdtemp(dir=stack.root))
    lives = Lives(program, bundle.path, folder, stack.environment)

    def go() -> Times:
        layered.renew(read_cache())
        return lives.created()

    return go


@contextmanager
def _one_hierarchy() -> Iterator[None]:
    """Have a view without v2 beside v1, which crun refuses; this machine's is as it was after."""
    if not UNIFIED.is_mount():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(_CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "unshare")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["umount", UNIFIED], check=True)
        yield
    finally:
        if libc.setns(before, _CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(before)
