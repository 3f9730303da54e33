# SPDX-License-Identifier: Apache-2.0
"""Creates a container that requests a share of a GPU: the daemon decides and edits the spec."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from tests.stack import Stack
from tests.stack.bundle import Bundle

from .container import Lives
from .native import FLOOR, exec_only
from .result import Result
from .turns import BenchError, Times, take

ROUNDS = 40
BUDGET_MS = 3.0
FIRST_BUDGET_MS = 6.0
CACHE = Path("/etc/ld.so.cache")
# A library that every glibc image's loader cache lists; another name of its length keeps the file
# valid, and makes it the cache of an image that was never seen.
LISTED = b"libc.so.6\0"


class Layered:
    """A bundle as containerd lays it out: its folder a tmpfs, its root an overlay of an image.

    On a plain folder of ext4 each replaced file would be written out at once (ext4(5),
    auto_da_alloc), which no container of an engine waits for.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        path = bundle.path
        self._image, self._layer = path.with_suffix(".image"), path.with_suffix(".layer")
        bundle.rootfs.rename(self._image)
        _mount("-t", "tmpfs", "tmpfs", path)
        bundle.rootfs.mkdir()

    def renew(self, cache: bytes) -> None:
        """Write config.json and lay a fresh layer over the image, as for every create."""
        self._bundle.save()
        if self._bundle.rootfs.is_mount():
            subprocess.run(["umount", self._bundle.rootfs], check=True)
        shutil.rmtree(self._layer, ignore_errors=True)
        for name in ("upper", "work"):
            (self._layer / name).mkdir(parents=True)
        (self._image / CACHE.relative_to("/")).write_bytes(cache)
        layers = {"lowerdir": self._image}
        layers |= {f"{name}dir": self._layer / name for name in ("upper", "work")}
        options = ",".join(f"{key}={folder}" for key, folder in layers.items())
        _mount("-t", "overlay", "-o", options, "overlay", self._bundle.rootfs)


def measure() -> Iterator[Result]:
    """Compare with runc on the same bundle without the quota.

    And a daemon that takes every dialect with one that takes none.
    """
    with Stack() as stack, Stack() as other:
        start(stack)
        start(other, dialects={"accept": []})
        plain = Bundle(stack, files={str(CACHE): read_cache()})
        asking = Bundle(stack, quota={"memory": "4GiB"}, files={str(CACHE): read_cache()})
        of_other = Bundle(other, quota={"memory": "4GiB"}, files={str(CACHE): read_cache()})
        layered, without, beside = Layered(asking), Layered(plain), Layered(of_other)
        floor = exec_only(stack.runtime, stack.root)
        series = take(
            {
                "runc": _created(stack, plain, without, stack.runtime, read_cache),
                FLOOR: _created(stack, plain, without, floor, read_cache),
                "gpushare": _created(
                    stack, asking, layered, stack.installation.launcher, read_cache
                ),
                "none": _created(other, of_other, beside, other.installation.launcher, read_cache),
                "first": _created(
                    stack, asking, layered, stack.installation.launcher, unseen_cache
                ),
            },
            ROUNDS,
        )
        was_injected(asking)
    rows = (
        ("gpushare", "create with a GPU", BUDGET_MS),
        ("first", "create, an image's first start", FIRST_BUDGET_MS),
    )
    for variant, name, budget in rows:
        yield series.compare("create", variant, "runc", name=name, budget=budget, floor=FLOOR)
    yield series.compare(
        "create", "gpushare", "none", name="create, all dialects beside none", budget=None
    )


def start(stack: Stack, **keys: object) -> None:
    """Start the stack's daemon with its run_dir on a tmpfs, as /run is one."""
    (stack.root / "run").mkdir()
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", stack.root / "run")
    said = yaml.safe_load(stack.config.read_text())
    stack.config.write_text(yaml.safe_dump({**said, **keys}))
    stack.start_daemon()


def _created(
    stack: Stack, bundle: Bundle, layered: Layered, program: Path, cache: Callable[[], bytes]
) -> Callable[[], Times]:
    lives = Lives(program, bundle.path, stack.root, stack.environment)

    def go() -> Times:
        layered.renew(cache())
        return lives.created()

    return go


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


def read_cache() -> bytes:
    return CACHE.read_bytes()


def unseen_cache() -> bytes:
    cache = read_cache()
    if LISTED not in cache:
        raise BenchError(f"{CACHE} lists no {LISTED[:-1].decode()}")
    return cache.replace(LISTED, secrets.token_hex(5)[: len(LISTED) - 1].encode() + b"\0")


def was_injected(bundle: Bundle) -> None:
    """A create that gave no GPU would be fast, and no measurement."""
    if "/opt/gpushare/tenant" not in json.dumps(bundle.read()["mounts"]):
        raise BenchError(f"{bundle.path}/config.json has no mount of gpushare's after create")
