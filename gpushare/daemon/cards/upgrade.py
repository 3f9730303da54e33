# SPDX-License-Identifier: Apache-2.0
"""An upgrade of the driver beneath a running daemon: noticed, and never half given.

A package manager replaces the libraries while the kernel runs the old module; the majors of devices
change when a module is loaded again. Both are looked for before every create, which costs four
look-ups, and every few seconds. A container gets the driver as it is then, or a refusal that says
what to do; those that run keep the files that they have open. NVML of the new driver is loaded by a
new worker: gpushared goes on.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import yaml

from gpushare.daemon.cards import dev_char, driver_spec
from gpushare.daemon.cards.card import DriverError
from gpushare.daemon.log import log
from gpushare.daemon.node import Loaded, Node, NoDriver, Signs, simulator_env
from gpushare.host import driver
from gpushare.oci import compat
from gpushare.oci.cdi import CdiError
from gpushare.oci.driver import Driver as DriverFiles


def look(files: DriverFiles, *, simulated: bool) -> Signs:
    """Return the signs now. A simulated driver has nothing of the kernel's."""
    libraries = (files.cuda.host_path, files.nvml.host_path)
    module = None if simulated else driver.kernel_version(driver_spec.ROOT)
    majors = "" if simulated else _text(driver_spec.ROOT / "proc/devices")
    return Signs(module, majors, tuple(map(_identity, libraries)))


def refuse_changed(node: Node) -> None:
    """Take over a driver that has changed; NoDriver where it cannot be given now."""
    loaded = node.driver
    if loaded is None:
        return
    now = look(loaded.files, simulated=loaded.is_simulated)
    if node.signs is None:
        node.signs = now
    if now == node.signs:
        node.driver_fault = ""
        return
    fault = _take_over(loaded, now, node)
    if fault != node.driver_fault:
        node.driver_fault = fault
        if fault:
            log("driver-changed", "error", why=fault)
    if fault:
        raise NoDriver(fault)


def watch(node: Node) -> None:
    """Look every few seconds, so that it is known before a container asks."""
    try:
        refuse_changed(node)
    except NoDriver:
        return  # kept in node.driver_fault, which status shows


def _take_over(loaded: Loaded, now: Signs, node: Node) -> str:
    """Read the spec again; return why the driver cannot be given, empty where it can."""
    place = driver_spec.path(node.config)
    try:
        files = driver_spec.load(node.config)
    except (driver_spec.NoSpec, CdiError, OSError, yaml.YAMLError) as error:
        return f"the driver has changed: {error}"
    missing = [
        lib.host_path for lib in (files.cuda, files.nvml) if _identity(lib.host_path) is None
    ]
    if missing:
        return (
            f"{place} is of another driver, for {missing[0]} is not there: write it again, e.g. "
            f"nvidia-ctk cdi generate --output={place}"
        )
    version = _version(files) or now.module
    if _is_other(version, loaded):
        try:
            # NVML of the new driver, in a process of its own; this one goes on as it is.
            loaded.nvml.renew(Path(files.nvml.host_path), simulator_env(files))
        except DriverError as error:
            return f"the driver is {version} now, and does not answer: {error}"
        if _is_other(version, loaded):
            return (
                f"the driver's libraries are {version}, and it says that it is "
                f"{loaded.nvml.driver_version}: reboot, or load the module of the new driver"
            )
    node.driver = replace(loaded, files=files)
    node.signs = look(files, simulated=loaded.is_simulated)
    dev_char.link(files)
    log("driver-files-renewed", cdi=str(place), driver=loaded.nvml.driver_version)
    return ""


def _is_other(version: str | None, loaded: Loaded) -> bool:
    """Whether the files' version is known and not the one that NVML speaks to."""
    return version is not None and compat.version(version) != compat.version(
        loaded.nvml.driver_version
    )


def _version(files: DriverFiles) -> str | None:
    """Return the version in the name of the real library, None where there is none in it."""
    name = Path(files.cuda.host_path).name
    version = name.partition(".so.")[2]
    return version if version.count(".") and version.partition(".")[0].isdigit() else None


def _identity(path: str) -> tuple[int, ...] | None:
    try:
        seen = os.stat(f"{driver_spec.ROOT}/{path}")  # noqa: PTH116 - before every create
    except OSError:
        return None
    return (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
