# SPDX-License-Identifier: Apache-2.0
"""The driver's files, and an upgrade of the driver beneath a running daemon.

The CDI spec is the one that is there, or the daemon's own, kept up to date: `gpushare.json` where
engines look, as `gpushare cdi generate` writes it, and `driver.json` in the state directory, as
setup does. The daemon's own are made again from the driver at every start, for the majors of its
devices may be others after a reboot, and when the driver has changed. Any other spec is read as it
is.

A package manager replaces the libraries while the kernel runs the old module; the majors of devices
change when a module is loaded again. Both are checked before every create, which costs four
look-ups, and every few seconds. A container gets the driver as it is then, or a refusal with the
fix; running containers keep the files that they have open. NVML of the new driver is loaded by a
new worker process, and gpushared keeps running.

systemd finds a device that a container may use by the link /dev/char/MAJOR:MINOR when it writes the
device rules anew, at every `systemctl daemon-reload`; without it the running container loses the
GPU. udev makes the links of devices in sysfs, and NVIDIA's are not there: gpushared makes them.
"""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import replace
from pathlib import Path
from typing import Final

import yaml

from gpushare.config import Config
from gpushare.daemon.cards.driver_client import DriverError
from gpushare.daemon.core.log import log
from gpushare.daemon.node import DriverFingerprint, LoadedDriver, NoDriver
from gpushare.daemon.state import DaemonState
from gpushare.errors import UserError
from gpushare.host import cdi_files, driver
from gpushare.oci import cdi, cuda_compat
from gpushare.oci.cdi import CdiDeviceNode, CdiError
from gpushare.oci.driver_files import (
    SIMULATED_DEVICE,
    DriverFiles,
    from_cdi,
    simulator_env,
)

ROOT: Final = Path("/")
LINKS: Final = Path("/dev/char")


class NoSpec(UserError):
    """There is no driver that could be described, or it is between two versions."""


def cdi_spec_path(config: Config) -> Path:
    """Return where the spec is: as configured, where one is, else the daemon's own."""
    return cdi_files.driver_spec_path(config.cdi, config.state_dir)


def load_driver_files(config: Config) -> DriverFiles:
    """Return the driver; NoSpec, CdiError, YAMLError, OSError."""
    place = cdi_spec_path(config)
    if not is_own_spec(place, config):
        return from_cdi(cdi.load(place, yaml.safe_load))
    return from_cdi(_renewed(place))


def is_own_spec(place: Path, config: Config) -> bool:
    """Whether the spec at `place` is the daemon's to write again."""
    named = place.parent in cdi_files.FOLDERS and place.name == cdi_files.OWN.name
    kept = place == config.state_dir / cdi_files.KEPT
    return (named or kept) and not _is_simulated(place)


def _renewed(place: Path) -> cdi.CdiSpec:
    """Return the driver's spec as it is now, and keep it at `place`."""
    try:
        found = driver.find(ROOT)
    except driver.DriverMissing as error:
        before = cdi_files.read_spec(place)
        if before.spec is None or before.missing:
            raise NoSpec(str(error)) from error
        return before.spec  # made of a driver that is not where one is looked for
    running = driver.kernel_version(ROOT)
    if running is not None and running != found.version:
        raise NoSpec(
            f"the driver's libraries are {found.version}, and its kernel module is {running}: "
            "reboot, "
            "or load the module of the new driver"
        )
    document = found.cdi()
    try:
        if cdi_files.write_spec(place, cdi_files.format_spec(document)):
            log("driver-cdi-spec-written", cdi=str(place), driver=found.version)
    except OSError as error:
        # It is kept to be shown; no allocation depends on it.
        log("driver-cdi-spec-write-failed", "warning", cdi=str(place), error=str(error))
    return cdi.from_document(document)


def _is_simulated(place: Path) -> bool:
    spec = cdi_files.read_spec(place).spec
    mounts = () if spec is None else spec.everything.mounts
    return any(mount.container_path == SIMULATED_DEVICE for mount in mounts)


def driver_fingerprint(files: DriverFiles, *, simulated: bool) -> DriverFingerprint:
    """Return the signs now. A simulated driver has nothing of the kernel's."""
    libraries = (files.cuda.host_path, files.nvml.host_path)
    module = None if simulated else driver.kernel_version(ROOT)
    majors = "" if simulated else _text(ROOT / "proc/devices")
    return DriverFingerprint(module, majors, tuple(map(_identity, libraries)))


def take_over_changed_driver(state: DaemonState) -> None:
    """Take over a driver that has changed; NoDriver where it cannot be used now."""
    loaded = state.node.driver
    if loaded is None:
        return
    now = driver_fingerprint(loaded.files, simulated=loaded.is_simulated)
    if state.node.fingerprint is None:
        state.node.fingerprint = now
    if now == state.node.fingerprint:
        state.node.driver_fault = ""
        return
    fault = _take_over(loaded, now, state)
    if fault != state.node.driver_fault:
        state.node.driver_fault = fault
        if fault:
            log("driver-replaced", "error", reason=fault)
    if fault:
        raise NoDriver(fault)


def watch_driver(state: DaemonState) -> None:
    """Look every few seconds, so that it is known before a container asks."""
    try:
        take_over_changed_driver(state)
    except NoDriver:
        return  # kept in node.driver_fault, which status shows


def _take_over(loaded: LoadedDriver, now: DriverFingerprint, state: DaemonState) -> str:
    """Read the spec again; return why the driver cannot be used, empty where it can be used."""
    place = cdi_spec_path(state.node.config)
    try:
        files = load_driver_files(state.node.config)
    except (NoSpec, CdiError, OSError, yaml.YAMLError) as error:
        return f"the driver has changed: {error}"
    missing = [
        lib.host_path for lib in (files.cuda, files.nvml) if _identity(lib.host_path) is None
    ]
    if missing:
        return (
            f"{place} is for another driver, because {missing[0]} is not there: regenerate it, "
            f"for example nvidia-ctk cdi generate --output={place}"
        )
    version = _version(files) or now.module
    if _is_other(version, loaded):
        try:
            # NVML of the new driver, in a process of its own; this one keeps its own.
            loaded.nvml.renew(Path(files.nvml.host_path), simulator_env(files))
        except DriverError as error:
            return f"the driver is {version} now, and is not responding: {error}"
        if _is_other(version, loaded):
            return (
                f"the driver's libraries are {version}, and the driver reports "
                f"{loaded.nvml.driver_version}: reboot, or load the module of the new driver"
            )
    state.node.driver = replace(loaded, files=files)
    state.node.fingerprint = driver_fingerprint(files, simulated=loaded.is_simulated)
    link_devices(files)
    log("driver-cdi-spec-updated", cdi=str(place), driver=loaded.nvml.driver_version)
    return ""


def _is_other(version: str | None, loaded: LoadedDriver) -> bool:
    """Whether the files' version is known and not the one that NVML speaks to."""
    return version is not None and cuda_compat.version(version) != cuda_compat.version(
        loaded.nvml.driver_version
    )


def _version(files: DriverFiles) -> str | None:
    """Return the version in the name of the real library, None where there is none in it."""
    name = Path(files.cuda.host_path).name
    version = name.partition(".so.")[2]
    return version if version.count(".") and version.partition(".")[0].isdigit() else None


def _identity(path: str) -> tuple[int, ...] | None:
    try:
        seen = os.stat(f"{ROOT}/{path}")  # noqa: PTH116 - before every create
    except OSError:
        return None
    return (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def link_devices(files: DriverFiles, folder: Path = LINKS) -> list[str]:
    """Make the links of the driver's nodes that this host has; return the names of new ones."""
    made = []
    for node in dict.fromkeys(files.cdi.everything.nodes):
        number = _number(node)
        if number is None:
            continue
        place = folder / f"{os.major(number)}:{os.minor(number)}"
        try:
            if _leads_to(place, number):
                continue
            if not folder.is_dir():
                folder.mkdir()
                folder.chmod(0o755)
            draft = folder / f".{secrets.token_hex(8)}"
            draft.symlink_to(os.path.relpath(node.host_path, folder))
            draft.replace(place)
        except OSError as error:
            log("device-link-failed", "warning", link=str(place), error=str(error))
            continue
        made.append(place.name)
    if made:
        log("device-links-created", links=made)
    return made


def _number(node: CdiDeviceNode) -> int | None:
    """Return the numbers of the host's own node, None where it has none or another's."""
    try:
        status = Path(node.host_path).stat()
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    recorded = (node.major, node.minor)
    real = (os.major(status.st_rdev), os.minor(status.st_rdev))
    return status.st_rdev if recorded in {(None, None), real} else None


def _leads_to(place: Path, number: int) -> bool:
    try:
        return place.stat().st_rdev == number
    except OSError:
        return False
