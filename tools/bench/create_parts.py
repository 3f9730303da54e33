# SPDX-License-Identifier: Apache-2.0
"""What the create of a container with a GPU consists of, each part beside the same without it.

The launcher, the daemon's create, the mounts and devices in the spec, an OCI hook; and the whole
with either way to bind.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from gpushare.install import install
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .container import Lives
from .create import CACHE, Layered, read_cache, start, was_injected
from .native import FLOOR, exec_only
from .result import Result
from .turns import BenchError, Times, take

ROUNDS = 30
TRUE = Path("/bin/true")


def measure() -> Iterator[Result]:
    """Measure all of them in the same rounds."""
    with Stack() as hooked, Stack() as bound:
        _set(hooked, bind="hook")
        _set(bound, bind="launcher")
        start(hooked)
        start(bound)
        runc, launcher = hooked.runtime, hooked.installation.launcher
        folder = hooked.root / "true"
        launcher_of_true = install(folder, runtime=TRUE, socket=hooked.socket).launcher
        plain, asking = _bundle(hooked), _bundle(hooked, quota=True)
        model, layer_of_model = _bundle(hooked, quota=True)
        held = Lives(launcher, model.path, hooked.root, hooked.environment)
        layer_of_model.renew(CACHE.read_bytes())
        name = held.keep()  # its pages are the sources of mounts below
        was_injected(model)
        by_launcher = _bundle(bound, quota=True)
        edited = {**model.read(), "hooks": {}}
        mounted = _bundle(hooked, config=edited)
        hook = {"path": str(TRUE), "args": ["true"], "env": ["PATH=/bin"]}
        with_hook = _bundle(hooked, config={**edited, "hooks": {"createRuntime": [hook]}})
        try:
            series = take(
                {
                    "runc": _created(plain, runc),
                    FLOOR: _created(plain, exec_only(runc, hooked.root)),
                    "launcher": _created(plain, launcher),
                    "true": _created(plain, launcher_of_true),
                    "daemon": _created(asking, launcher_of_true),
                    "mounts": _created(mounted, runc),
                    "a hook": _created(with_hook, runc),
                    "bind: hook": _created(asking, launcher),
                    "bind: launcher": _created(by_launcher, bound.installation.launcher),
                },
                ROUNDS,
            )
            _is_bound(asking[0], "hook")
            _is_bound(by_launcher[0], "launcher")
        finally:
            held.remove(name)
    rows = (
        ("launcher", "runc", "create, the launcher"),
        ("daemon", "true", "create, the daemon"),
        ("mounts", "runc", "create, mounts and devices"),
        ("a hook", "mounts", "create, an OCI hook (true)"),
        ("bind: hook", "runc", "create, bind: hook"),
        ("bind: launcher", "runc", "create, bind: launcher"),
        ("bind: launcher", "bind: hook", "create, launcher beside hook"),
    )
    for variant, baseline, row in rows:
        floor = FLOOR if baseline == "runc" else None
        yield series.compare("create", variant, baseline, name=row, budget=None, floor=floor)


def _is_bound(bundle: Bundle, by: str) -> None:
    """Two ways that are the same one would cost the same, and say nothing."""
    if ("createRuntime" in bundle.read().get("hooks", {})) != (by == "hook"):
        raise BenchError(f"{bundle.path}: not bound by the {by}")


Laid = tuple[Bundle, Layered]


def _set(stack: Stack, **keys: object) -> None:
    said = yaml.safe_load(stack.config.read_text())
    stack.config.write_text(yaml.safe_dump({**said, **keys}))


def _bundle(stack: Stack, *, quota: bool = False, config: dict[str, object] | None = None) -> Laid:
    asked = {"memory": "4GiB"} if quota else None
    made = Bundle(stack, quota=asked, files={str(CACHE): CACHE.read_bytes()})
    if config is not None:
        made.config = copy.deepcopy(config)
    return made, Layered(made)


def _created(laid: Laid, program: Path) -> Callable[[], Times]:
    bundle, layered = laid
    stack = bundle.stack
    lives = Lives(program, bundle.path, stack.root, stack.environment)

    def go() -> Times:
        # As engines have it: the launcher binds only what has a cgroup of its name.
        name = f"bench-{secrets.token_hex(4)}"
        bundle.config["linux"]["cgroupsPath"] = f"/{stack.cgroup}/{name}"
        layered.renew(read_cache())
        return lives.created(name)

    return go
