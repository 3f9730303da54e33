# SPDX-License-Identifier: Apache-2.0
"""Checks for kinds of machines that limit what gpushare can do."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

import gpushare
from gpushare import config, install, simulator
from gpushare.checks import SETUP, Check
from gpushare.host import driver
from gpushare.host.driver import installed
from gpushare.host.rooted_tree import RootedTree
from gpushare.oci.elf import platform_of
from gpushare.setup import low_level_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.protocol import DaemonStatus

_USUAL: Final = "x86_64"
_TEGRA: Final = "/etc/nv_tegra_release"
_COMPATIBLE: Final = "/proc/device-tree/compatible"
_GRID: Final = ("/etc/nvidia/gridd.conf", "/usr/bin/nvidia-gridd")
_ENFORCE: Final = "/sys/fs/selinux/enforce"


def check_machine(root: Path = Path("/"), architecture: str | None = None) -> Iterator[Check]:
    """Yield a result for each special property of the machine at `root`; none for a usual server.

    `architecture` is uname(2)'s machine. Default: this machine's.
    """
    host = RootedTree(root)
    yield from _architecture(architecture or os.uname().machine)
    if _is_jetson(host):
        yield Check(
            "warn",
            "Jetson: the GPU has no dedicated memory, so gpushare cannot share it by quota. "
            "Containers that request no GPU start as before.",
            "use a machine with a card, or try gpushare setup --simulate h200",
        )
    if installed.is_wsl(host):
        yield Check(
            "warn",
            "WSL 2: all cards share one device node and the driver lists no processes, so only "
            "the interposer library enforces quotas, without measurement by the driver",
        )
    if any(host.at(path).exists() for path in _GRID):
        yield Check(
            "ok",
            "vGPU guest (GRID driver): quotas divide this machine's part of the memory; the "
            "hypervisor schedules the card's time",
        )
    if host.text(_ENFORCE).strip() == "1":
        yield Check(
            "warn",
            "SELinux is enforcing: a container's pages have the container's label, and gpushare "
            "has no policy that allows engines to connect to the daemon's socket",
            "if a container is refused: ausearch -m avc -ts recent",
        )


def _architecture(machine: str) -> Iterator[Check]:
    try:
        platform_of(machine)
    except ValueError as error:
        yield Check("fail", str(error), "use a machine with a supported architecture")
        return
    if machine != _USUAL:
        yield Check("ok", f"{machine}: supported, but not benchmarked")


def _is_jetson(host: RootedTree) -> bool:
    """Whether this is a Tegra. Source: L4T; Devicetree, "compatible"."""
    return host.at(_TEGRA).exists() or "nvidia,tegra" in host.text(_COMPATIBLE)


def used_installation(status: DaemonStatus | None) -> install.Installation | None:
    """Return the installation that the daemon uses, or the active one."""
    if status is not None:
        named = install.Installation(Path(status["library_dir"]).parent)
        if named.launcher.exists():
            return named
    return install.current()


def check_installation(installation: install.Installation | None) -> Iterator[Check]:
    """Check the copies, and the low-level runtime that the launcher runs."""
    if installation is None:
        yield Check("warn", f"gpushare is not installed in {install.PREFIX}", SETUP)
        return
    real = installation.root.resolve()
    if real.name.partition("-")[0] != gpushare.__version__:
        yield Check(
            "warn", f"{real.name} is installed, this command is {gpushare.__version__}", SETUP
        )
    for path in (installation.launcher, installation.hook, installation.libraries):
        yield from _writable_by_others(path)
    runtime = low_level_runtime.wrapped_runtime(installation.launcher)
    try:
        yield Check("ok", f"{real}, runs {runtime} ({low_level_runtime.runtime_version(runtime)})")
    except low_level_runtime.NoRuntime as error:
        yield Check("fail", str(error), f"install runc, then {SETUP}")


def _writable_by_others(path: Path) -> Iterator[Check]:
    try:
        status = path.stat()
    except FileNotFoundError:
        yield Check("fail", f"{path} is missing", SETUP)
        return
    if status.st_uid not in {0, os.geteuid()} or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield Check("fail", f"{path} is writable by users other than root", f"chmod go-w {path}")


def check_configuration(file: Path | None) -> Iterator[Check]:
    """Check the configuration at `file`."""
    try:
        loaded = config.load(file)
    except config.ConfigError as error:
        yield from (Check("fail", f"configuration: {line}") for line in str(error).splitlines())
        return
    yield Check("ok", f"configuration: {loaded.file or 'no file, using defaults'}")
    if loaded.cdi is None:
        return
    try:
        spec = _spec(loaded.cdi)
    except (OSError, ValueError, yaml.YAMLError) as error:
        yield Check("fail", f"CDI spec {loaded.cdi}: {error}", SETUP)
        return
    missing = driver.missing_files(spec)
    if missing:
        yield Check(
            "fail",
            f"CDI spec {loaded.cdi} belongs to another driver: {missing[0]} does not exist",
            SETUP,
        )
    else:
        yield Check("ok", f"CDI spec {loaded.cdi}")


def is_simulated(file: Path | None) -> bool:
    """Whether the configuration uses simulated cards, so that the host's driver is irrelevant."""
    try:
        cdi = config.load(file).cdi
        mounts = _spec(cdi)["containerEdits"]["mounts"] if cdi is not None else []
        return any(mount.get("containerPath") == simulator.DEVICE_IN_CONTAINER for mount in mounts)
    except (config.ConfigError, OSError, ValueError, KeyError, yaml.YAMLError):
        return False  # `check_configuration` reports the error


def _spec(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    spec = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    if not isinstance(spec, dict):
        raise ValueError("not an object")  # noqa: TRY004 - about the file's content, not a type
    return spec


_NAME = "scheduler.sock"


def check_orphaned_scheduler(run_dir: Path, listeners: Path) -> Iterator[Check]:
    """Yield a result if the scheduler of `run_dir` listens; `listeners` is /proc/net/unix."""
    try:
        lines = listeners.read_text(errors="replace").splitlines()
    except OSError:
        return
    if any(line.endswith(f" {run_dir / _NAME}") for line in lines):
        yield Check(
            "ok",
            "scheduler: running without gpushared; compute shares remain enforced",
        )
