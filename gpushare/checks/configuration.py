# SPDX-License-Identifier: Apache-2.0
"""gpushare.yaml and the CDI spec that it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gpushare import config, simulator
from gpushare.checks.check import SETUP, Check
from gpushare.host import driver

if TYPE_CHECKING:
    from collections.abc import Iterator


def of_file(file: Path | None) -> Iterator[Check]:
    """Yield what is found of the configuration at `file`."""
    try:
        said = config.load(file)
    except config.ConfigError as error:
        yield from (Check("fail", f"configuration: {line}") for line in str(error).splitlines())
        return
    yield Check("ok", f"configuration {said.file or 'not there: defaults'}")
    if said.cdi is None:
        return
    try:
        spec = _spec(said.cdi)
    except (OSError, ValueError, yaml.YAMLError) as error:
        yield Check("fail", f"CDI spec {said.cdi}: {error}", SETUP)
        return
    missing = driver.stale(spec)
    if missing:
        yield Check("fail", f"CDI spec {said.cdi} is of another driver: no {missing[0]}", SETUP)
    else:
        yield Check("ok", f"CDI spec {said.cdi}")


def simulated(file: Path | None) -> bool:
    """Whether the configuration names simulated cards: the host's own driver does not matter."""
    try:
        cdi = config.load(file).cdi
        mounts = _spec(cdi)["containerEdits"]["mounts"] if cdi is not None else []
        return any(mount.get("containerPath") == simulator.DEVICE_IN_CONTAINER for mount in mounts)
    except (config.ConfigError, OSError, ValueError, KeyError, yaml.YAMLError):
        return False  # `of_file` says what is wrong with it


def _spec(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    spec = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    if not isinstance(spec, dict):
        raise ValueError("not an object")  # noqa: TRY004 - of a file's content, not of a type
    return spec
