# SPDX-License-Identifier: Apache-2.0
"""Checks of the machine and its driver: kinds that limit gpushare, and files that do not match."""

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
from gpushare.host import driver, init_system
from gpushare.host.driver import files
from gpushare.host.rooted_tree import RootedTree
from gpushare.oci.elf import platform_of
from gpushare.setup import low_level_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.protocol import DaemonStatus

CHAR: Final = Path("/dev/char")
MEMORY_LIMITS_SINCE: Final = 615  # the first driver with memory limits of its own
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
    if driver.is_wsl(host):
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
            "SELinux is enforcing: containers need gpushare's policy module, which has not been "
            "tested in this mode yet",
            "install gpushare as an rpm; if a container is refused: ausearch -m avc -ts recent",
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


def check_driver(status: DaemonStatus | None) -> Iterator[Check]:
    """Check the driver as the daemon reports it, or otherwise its installed files."""
    if status is not None and status["driver_version"]:
        kind = "simulated driver" if status["simulated"] else "driver"
        cards = f"{status['cards']} card{'' if status['cards'] == 1 else 's'}"
        text = f"{kind} {status['driver_version']}, CUDA {status['cuda_version']}, {cards}"
        if status["cards"]:
            yield Check("ok", text)
        else:
            yield Check(
                "fail", text, "see nvidia-smi; for a virtual machine, pass the GPU through to it"
            )
        yield from _limits(status["driver_version"])
        if status["simulated"]:
            return
    try:
        found = driver.find()
    except driver.DriverMissing as error:
        yield Check("fail", f"driver: {error}")
        return
    if status is None or not status["driver_version"]:
        yield Check("ok", f"driver {found.version}, {len(found.cards)} cards")
    yield from _loaded(found)
    yield from _links(found)
    yield from _char_links(found)


def _limits(version: str) -> Iterator[Check]:
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < MEMORY_LIMITS_SINCE:
        yield Check(
            "ok",
            f"driver < {MEMORY_LIMITS_SINCE}: no memory limits of its own; the interposer library "
            "enforces quotas (gpushare explain isolation)",
        )


def _loaded(found: driver.InstalledDriver) -> Iterator[Check]:
    module = driver.kernel_version()
    if module is None and not Path("/proc/driver/nvidia/version").exists():
        yield Check("fail", "the kernel module nvidia is not loaded", "modprobe nvidia")
    elif module is not None and module != found.version:
        yield Check(
            "fail",
            f"kernel module {module}, libraries {found.version}: versions must match",
            "reboot",
        )
    if not any(node.path == "/dev/nvidia-uvm" for node in found.control):
        yield Check("fail", "nvidia-uvm is not loaded: CUDA cannot start", "nvidia-modprobe -u -c0")


def _links(found: driver.InstalledDriver) -> Iterator[Check]:
    for name in (driver.CUDA, driver.NVML):
        link = driver.LINKS / name
        if link.is_symlink() and link.resolve() != found.library(name):
            yield Check("fail", f"{link} does not belong to driver {found.version}", SETUP)


def _char_links(found: driver.InstalledDriver) -> Iterator[Check]:
    """Check /dev/char: without the links, a `systemctl daemon-reload` removes running GPUs."""
    for node in (*found.control, *(node for card in found.cards for node in card.nodes)):
        link = CHAR / f"{node.major}:{node.minor}"
        if Path(node.path).exists() and not link.exists():
            yield Check(
                "warn",
                f"{link} is missing: containers lose {node.path} after systemctl daemon-reload",
                f"{init_system.advice('systemctl restart gpushared')}: gpushared creates it",
            )
            return


def check_placeholders() -> Iterator[Check]:
    """Check for empty files that an engine left in an image in place of the driver's files."""
    for soname in (driver.CUDA, driver.NVML):
        for path in files.library_paths(soname):
            if path.stat().st_size == 0:
                yield Check(
                    "fail",
                    f'{path} is empty ("file too short"): another runtime left it in an image',
                    f"rm {path}",
                )
