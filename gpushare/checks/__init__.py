# SPDX-License-Identifier: Apache-2.0
"""The checks of `gpushare doctor`: each one checks a single subject and suggests a fix.

A check changes nothing, does not need root, and reports "not known" instead of guessing.
gpushare/cli/doctor.py runs them in order.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import yaml

import gpushare
from gpushare import config, install, settings, simulator
from gpushare.engines import ENGINES, EngineStatus, engine_status
from gpushare.host import driver, init_system
from gpushare.host.driver import files
from gpushare.host.rooted_tree import RootedTree
from gpushare.oci.elf import platform_of
from gpushare.old_drivers import OLDEST_SUPPORTED, describe_old_driver
from gpushare.protocol.rows import CardRow
from gpushare.setup import low_level_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpushare.protocol import DaemonStatus


CheckLevel = Literal["ok", "warn", "fail"]
SETUP: Final = "gpushare setup"


@dataclass(frozen=True)
class Check:
    """The result of a check; `fix` is a command or a sentence, empty if no action is needed."""

    level: CheckLevel
    text: str
    fix: str = ""


# --- checks the engines: whether the runtime is registered and loaded ---


def check_engines(launcher: Path | None) -> Iterator[Check]:
    """Check the engines; if one has the runtime, the others need not have it."""
    present = [engine for engine in ENGINES.values() if engine.is_present()]
    statuses = [engine_status(engine, launcher) for engine in present]
    anywhere = any(one.launcher is not None for one in statuses)
    for status in statuses:
        if not (anywhere and status.word in {"unregistered", "refused"}):
            yield from _engine(status)
        if status.engine == "docker" and status.launcher is not None:
            yield check_docker_gpus()
    if not present:
        text = f"no container engine ({', '.join(ENGINES)}): only `gpushare run` works"
        yield Check("warn", text, "install docker")


def _engine(status: EngineStatus) -> Iterator[Check]:
    level: CheckLevel = "ok" if status.well else "fail" if status.launcher is not None else "warn"
    where = f" ({status.file})" if status.file else ""
    yield Check(level, f"{status.engine}: {status.text}{where}", status.fix)
    yield from (Check("warn", f"{status.engine}: {remark}") for remark in status.remarks)


# The PATH that systemd sets for dockerd, which searches it once at its start (moby,
# daemon/nvidia_linux.go).
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOOK: Final = "nvidia-container-runtime-hook"
REFUSED: Final = (
    f"refused by dockerd (could not select device driver) because {HOOK} is not installed"
)
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
    text = f"docker run --gpus: {REFUSED}. So are `gpus` and `deploy` devices of Compose"
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


# --- checks of MPS: the cards in MPS mode, and control daemons that gpushare did not start ---
#
# What is wrong with a card's own control daemon is among gpushared's warnings.

#: Where a control daemon listens that was started without a folder of its own (Multi-Process
#: Service manual, release 615, "Environment Variables").
DEFAULTS: Final = (Path("/tmp/nvidia-mps"), Path("/run/nvidia-mps"))  # noqa: S108


def check_mps(
    cards: Sequence[CardRow], warnings: Iterable[str], folders: Iterable[Path] = DEFAULTS
) -> Iterator[Check]:
    """Check the cards in MPS mode, and look for other control daemons; `warnings` are gpushared's.

    A control daemon of somebody else is only in the way of a card in MPS mode.
    """
    mps_cards = [card for card in cards if card["mode"] == "mps"]
    faults = " ".join(warnings)
    for card in mps_cards:
        if f"card {card['index']} is in MPS mode, and " not in faults:
            tenants = f"{card['tenants']} of at most {card['max_tenants']} containers"
            yield Check(
                "ok", f"card {card['index']} is in MPS mode, its control daemon runs, {tenants}"
            )
    for folder in folders if mps_cards else ():
        if (folder / "control").exists():
            yield Check(
                "warn",
                f"{folder} belongs to an MPS control daemon that gpushare did not start: a server "
                "of it on a card in MPS mode keeps containers off that card",
                f"echo quit | CUDA_MPS_PIPE_DIRECTORY={folder} nvidia-cuda-mps-control",
            )


# --- checks of the machine and its driver ---

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
    except settings.ConfigError as error:
        yield from (Check("fail", f"configuration: {line}") for line in str(error).splitlines())
        return
    yield Check("ok", f"configuration: {loaded.file or 'no file, using defaults'}")
    for name, server in loaded.remote.servers.items():
        if not server.is_local:
            yield Check(
                "warn",
                f"remote server {name}: gpushare does not encrypt the connection to "
                f"{server.address}, and does not check who uses that server",
                "see docs/how-to/use-a-remote-gpu.md for TLS with client certificates",
            )
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


def has_remote_servers(file: Path | None) -> bool:
    """Whether the configuration has servers of remote GPUs."""
    try:
        return bool(config.load(file).remote.servers)
    except settings.ConfigError:
        return False  # `check_configuration` reports the error


def is_simulated(file: Path | None) -> bool:
    """Whether the configuration uses simulated cards, so that the host's driver is irrelevant."""
    try:
        cdi = config.load(file).cdi
        mounts = _spec(cdi)["containerEdits"]["mounts"] if cdi is not None else []
        return any(mount.get("containerPath") == simulator.DEVICE_IN_CONTAINER for mount in mounts)
    except (settings.ConfigError, OSError, ValueError, KeyError, yaml.YAMLError):
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


def check_driver(status: DaemonStatus | None, *, required: bool = True) -> Iterator[Check]:
    """Check the driver as the daemon reports it, or otherwise its installed files.

    It is not `required` on a node whose containers use remote GPUs.
    """
    if status is not None and status["driver_version"]:
        kind = "simulated driver" if status["simulated"] else "driver"
        text = f"{kind} {status['driver_version']}, CUDA {status['cuda_version']}"
        yield _cards(text, status["cards"], len(status.get("unified_cards", ())))
        yield from _limits(status["driver_version"])
        if status["simulated"]:
            return
    try:
        installed = driver.find()
    except driver.DriverMissing as error:
        yield Check("fail" if required else "ok", f"driver: {error}")
        return
    told = status is not None and status["driver_version"]
    if not told:
        yield from _limits(installed.version)
    if (check := _loaded(installed)).level != "ok" or not told:
        yield check
    if not any(node.path == "/dev/nvidia-uvm" for node in installed.control):
        yield Check("fail", "nvidia-uvm is not loaded: CUDA cannot start", "nvidia-modprobe -u -c0")
    yield from _links(installed)
    yield from _char_links(installed)


def _cards(driver_text: str, number: int, unified: int = 0) -> Check:
    text = f"{driver_text}, {number} card{'' if number == 1 else 's'}"
    fix = "see nvidia-smi; for a virtual machine, pass the GPU through to it"
    if unified:
        fix = f"with unified memory, which cannot be shared: {unified}"
    return Check("ok", text) if number else Check("fail", text, fix)


def _limits(version: str) -> Iterator[Check]:
    major = version.partition(".")[0]
    if known := describe_old_driver(version):
        yield Check("warn", known, f"install driver {OLDEST_SUPPORTED} or newer")
    if major.isdigit() and int(major) < MEMORY_LIMITS_SINCE:
        yield Check(
            "ok",
            f"driver < {MEMORY_LIMITS_SINCE}: no memory limits of its own; the interposer library "
            "enforces quotas (gpushare explain isolation)",
        )


def _loaded(installed: driver.InstalledDriver) -> Check:
    module = driver.kernel_version()
    if module is None and not Path("/proc/driver/nvidia/version").exists():
        text = f"driver {installed.version}: the kernel module nvidia is not loaded"
        return Check("fail", text, "modprobe nvidia")
    if module not in {None, installed.version}:
        text = f"kernel module {module}, libraries {installed.version}: versions must match"
        return Check("fail", text, "reboot")
    return _cards(f"driver {installed.version}", len(installed.cards))


def _links(installed: driver.InstalledDriver) -> Iterator[Check]:
    for name in (driver.CUDA, driver.NVML):
        link = driver.LINKS / name
        if link.is_symlink() and link.resolve() != installed.library(name):
            yield Check("fail", f"{link} does not belong to driver {installed.version}", SETUP)


def _char_links(installed: driver.InstalledDriver) -> Iterator[Check]:
    """Check /dev/char: without the links, a `systemctl daemon-reload` removes running GPUs."""
    for node in (*installed.control, *(node for card in installed.cards for node in card.nodes)):
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
