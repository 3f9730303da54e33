# SPDX-License-Identifier: Apache-2.0
"""Creates containers that request a share of a GPU: the daemon decides and edits the spec.

The whole beside runc, and what it consists of.
"""

from __future__ import annotations

import copy
import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gpushare.install import install
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .container import Lives
from .native import FLOOR, exec_only
from .result import Result
from .turns import BenchError, Times, take

ROUNDS, PARTS_ROUNDS = 100, 60
BUDGET_MS = 3.0
FIRST_BUDGET_MS = 6.0
TRUE = Path("/bin/true")
CACHE = Path("/etc/ld.so.cache")
# A library that every glibc image's loader cache lists; another name of its length keeps the file
# valid, and makes it the cache of an image that was never seen.
LISTED = b"libc.so.6\0"


def read_cache() -> bytes:
    return CACHE.read_bytes()


def unseen_cache() -> bytes:
    cache = read_cache()
    if LISTED not in cache:
        raise BenchError(f"{CACHE} lists no {LISTED[:-1].decode()}")
    return cache.replace(LISTED, secrets.token_hex(5)[: len(LISTED) - 1].encode() + b"\0")


class Layered:
    """A bundle as containerd lays it out: its folder a tmpfs, its root an overlay of an image.

    On a plain folder of ext4 each replaced file would be written out at once (ext4(5),
    auto_da_alloc), which no container of an engine waits for.
    """

    def __init__(
        self, stack: Stack, *, quota: bool = False, config: dict[str, object] | None = None
    ) -> None:
        asked = {"memory": "4GiB"} if quota else None
        self.bundle = Bundle(stack, quota=asked, files={str(CACHE): read_cache()})
        if config is not None:
            self.bundle.config = copy.deepcopy(config)
        path = self.bundle.path
        self._image, self._layer = path.with_suffix(".image"), path.with_suffix(".layer")
        self.bundle.rootfs.rename(self._image)
        _mount("-t", "tmpfs", "tmpfs", path)
        self.bundle.rootfs.mkdir()

    def renew(self, cache: bytes) -> None:
        """Write config.json and lay a fresh layer over the image, as for every create."""
        self.bundle.save()
        if self.bundle.rootfs.is_mount():
            subprocess.run(["umount", self.bundle.rootfs], check=True)
        shutil.rmtree(self._layer, ignore_errors=True)
        for name in ("upper", "work"):
            (self._layer / name).mkdir(parents=True)
        (self._image / CACHE.relative_to("/")).write_bytes(cache)
        layers = {"lowerdir": self._image}
        layers |= {f"{name}dir": self._layer / name for name in ("upper", "work")}
        options = ",".join(f"{key}={folder}" for key, folder in layers.items())
        _mount("-t", "overlay", "-o", options, "overlay", self.bundle.rootfs)

    def lives(self, program: Path) -> Lives:
        """Return its containers under a runtime, which knows only those that it made itself."""
        stack = self.bundle.stack
        folder = Path(tempfile.mkdtemp(dir=stack.root))
        return Lives(program, self.bundle.path, folder, stack.environment)

    def creating(
        self, program: Path, cache: Callable[[], bytes] = read_cache
    ) -> Callable[[], Times]:
        """Return what creates a container of it, and takes it away again."""
        lives = self.lives(program)

        def go() -> Times:
            # As engines have it: the launcher binds only what has a cgroup of its name.
            name = f"bench-{secrets.token_hex(4)}"
            cgroup = f"/{self.bundle.stack.cgroup}/{name}"
            self.bundle.config["linux"]["cgroupsPath"] = cgroup
            self.renew(cache())
            return lives.created(name)

        return go

    def check_injected(self) -> None:
        """A create that gave no GPU would be fast, and no measurement."""
        if "/.gpushare/tenant" not in json.dumps(self.bundle.read()["mounts"]):
            raise BenchError(f"{self.bundle.path}/config.json has no mount of gpushare's")

    def check_bound(self, by: str) -> None:
        """Two ways that are the same one would cost the same, and say nothing."""
        if ("createRuntime" in self.bundle.read().get("hooks", {})) != (by == "hook"):
            raise BenchError(f"{self.bundle.path}: not bound by the {by}")


def start(stack: Stack, **keys: object) -> None:
    """Start the stack's daemon with its run_dir on a tmpfs, as /run is one."""
    (stack.root / "run").mkdir()
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", stack.root / "run")
    stack.configure(**keys)
    stack.start_daemon()


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


def measure() -> Iterator[Result]:
    """Compare with runc on the same bundle without the quota."""
    with Stack() as stack:
        start(stack)
        plain, again, asking = Layered(stack), Layered(stack), Layered(stack, quota=True)
        launcher = stack.installation.launcher
        variants = {
            "runc": plain.creating(stack.runtime),
            "runc again": again.creating(stack.runtime),
            FLOOR: plain.creating(exec_only(stack.runtime, stack.root)),
            "gpushare": asking.creating(launcher),
            "first": asking.creating(launcher, unseen_cache),
        }
        series = take(variants, ROUNDS)
        asking.check_injected()
    for variant, name, budget in (
        ("gpushare", "create with a GPU", BUDGET_MS),
        ("first", "create, an image's first start", FIRST_BUDGET_MS),
        ("runc again", "create, runc beside itself", None),
    ):
        yield series.compare("create", variant, "runc", name=name, budget=budget, floor=FLOOR)


def parts() -> Iterator[Result]:
    """Measure what a create consists of, each part beside the same without it, in the same rounds.

    The launcher, the daemon's create, the mounts and devices in the spec, an OCI hook; and the
    whole with either way to bind.
    """
    with Stack() as hooked, Stack() as bound:
        start(hooked, bind="hook")
        start(bound, bind="launcher")
        runc, launcher = hooked.runtime, hooked.installation.launcher
        of_true = install(hooked.root / "true", runtime=TRUE, socket=hooked.socket).launcher
        plain, asking = Layered(hooked), Layered(hooked, quota=True)
        model = Layered(hooked, quota=True)
        held = model.lives(launcher)
        model.renew(read_cache())
        name = held.keep()  # its pages are the sources of mounts below
        model.check_injected()
        by_launcher = Layered(bound, quota=True)
        edited = {**model.bundle.read(), "hooks": {}}
        hook = {"path": str(TRUE), "args": ["true"], "env": ["PATH=/bin"]}
        with_hook = {**edited, "hooks": {"createRuntime": [hook]}}
        variants = {
            "runc": plain.creating(runc),
            FLOOR: plain.creating(exec_only(runc, hooked.root)),
            "launcher": plain.creating(launcher),
            "true": plain.creating(of_true),
            "daemon": asking.creating(of_true),
            "mounts": Layered(hooked, config=edited).creating(runc),
            "a hook": Layered(hooked, config=with_hook).creating(runc),
            "bind: hook": asking.creating(launcher),
            "bind: launcher": by_launcher.creating(bound.installation.launcher),
        }
        try:
            series = take(variants, PARTS_ROUNDS)
            asking.check_bound("hook")
            by_launcher.check_bound("launcher")
        finally:
            held.remove(name)
    for variant, baseline, row in (
        ("launcher", "runc", "create, the launcher"),
        ("daemon", "true", "create, the daemon"),
        ("mounts", "runc", "create, mounts and devices"),
        ("a hook", "mounts", "create, an OCI hook (true)"),
        ("bind: hook", "runc", "create, bind: hook"),
        ("bind: launcher", "runc", "create, bind: launcher"),
        ("bind: launcher", "bind: hook", "create, launcher beside hook"),
    ):
        floor = FLOOR if baseline == "runc" else None
        yield series.compare("create", variant, baseline, name=row, floor=floor)
