# SPDX-License-Identifier: Apache-2.0
"""Checks the engines: whether the runtime is registered and loaded."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from gpushare.checks import Check, CheckLevel
from gpushare.engines import ENGINES, EngineStatus, engine_status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def check_engines(launcher: Path | None) -> Iterator[Check]:
    """Check the engines; if one has the runtime, the others need not have it."""
    present = [engine for engine in ENGINES.values() if engine.is_present()]
    found = [engine_status(engine, launcher) for engine in present]
    anywhere = any(one.launcher is not None for one in found)
    for one in found:
        if not (anywhere and one.word in {"unregistered", "refused"}):
            yield from _engine(one)
        if one.engine == "docker" and one.launcher is not None:
            yield check_docker_gpus()
    if not present:
        text = f"no container engine ({', '.join(ENGINES)}): only `gpushare run` works"
        yield Check("warn", text, "install docker")


def _engine(one: EngineStatus) -> Iterator[Check]:
    level: CheckLevel = "ok" if one.well else "fail" if one.launcher is not None else "warn"
    where = f" ({one.file})" if one.file else ""
    yield Check(level, f"{one.engine}: {one.text}{where}", one.fix)
    yield from (Check("warn", f"{one.engine}: {remark}") for remark in one.remarks)


# The PATH that systemd sets for dockerd, which searches it once at its start (moby,
# daemon/nvidia_linux.go).
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOOK: Final = "nvidia-container-runtime-hook"
CDI_HOOK: Final = "nvidia-cdi-hook"

_ANSWER_SECONDS: Final = 10.0
_CONVERTS: Final = (28, 3)  # --gpus becomes a CDI device if only the CDI hook is installed
_CDI: Final = (28, 2)  # CDI is enabled by default
_CDI_FEATURE: Final = (25, 0)
_INSTEAD: Final = "-e GPUSHARE_MEMORY=4GiB, or -e GPUSHARE_COUNT=1 for a whole card"
_DEVICE: Final = "--device nvidia.com/gpu=0 (gpushare cdi generate writes the spec)"


def check_docker_gpus() -> Check:
    """Return whether `docker run --gpus` reaches a runtime, and otherwise what to use instead."""
    hook = shutil.which(HOOK, path=PATH)
    if hook is not None:
        return Check("ok", f"docker run --gpus: accepted, with {hook}")
    version = _version()
    cdi_hook = shutil.which(CDI_HOOK, path=PATH)
    if cdi_hook is not None and version is not None and version >= _CONVERTS:
        return Check("ok", f"docker run --gpus: accepted, as a CDI device, with {cdi_hook}")
    text = (
        f"docker run --gpus: refused by dockerd (could not select device driver) because {HOOK} "
        "is not installed"
    )
    # Not a problem: containers without --gpus are not affected.
    return Check("ok", text, f"use {_instead(version)}")


def _instead(version: tuple[int, int] | None) -> str:
    if version is None or version < _CDI_FEATURE:
        return _INSTEAD
    if version < _CDI:
        return f'{_INSTEAD}; or, with "features": {{"cdi": true}} in daemon.json, {_DEVICE}'
    return f"{_INSTEAD}; or {_DEVICE}"


def _version() -> tuple[int, int] | None:
    """Return the running dockerd's version, None if it does not respond."""
    argv = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.match(r"([0-9]+)\.([0-9]+)", done.stdout)
    return (int(match[1]), int(match[2])) if match and done.returncode == 0 else None
