# SPDX-License-Identifier: Apache-2.0
"""The CDI spec that the daemon works by: the one that is there, or its own, kept up to date.

Its own are `gpushare.json` where engines look, as `gpushare cdi generate` writes it, and
`driver.json` in the state directory, as setup does. They are made again from the driver itself at
every start, for the majors of its devices may be others after a reboot, and when it has changed.
Everybody else's spec is read as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from gpushare.config import Config
from gpushare.daemon.log import log
from gpushare.daemon.node import SIMULATED_DEVICE
from gpushare.errors import UserError
from gpushare.host import cdi_files, driver
from gpushare.oci import cdi
from gpushare.oci.driver import Driver as DriverFiles
from gpushare.oci.driver import from_cdi

ROOT: Final = Path("/")


class NoSpec(UserError):
    """There is no driver that could be described, or it is between two versions."""


def path(config: Config) -> Path:
    """Return where the spec is: as configured, where one is, else the daemon's own."""
    return cdi_files.of_node(config.cdi, config.state_dir)


def load(config: Config) -> DriverFiles:
    """Return the driver; NoSpec, CdiError, YAMLError, OSError."""
    place = path(config)
    if not is_own(place, config):
        return from_cdi(cdi.load(place, yaml.safe_load))
    return from_cdi(_renewed(place))


def is_own(place: Path, config: Config) -> bool:
    """Whether the spec at `place` is the daemon's to write again."""
    named = place.parent in cdi_files.FOLDERS and place.name == cdi_files.OWN.name
    kept = place == config.state_dir / cdi_files.KEPT
    return (named or kept) and not _is_simulated(place)


def _renewed(place: Path) -> cdi.CdiSpec:
    """Return the driver's spec as it is now, and keep it at `place`."""
    try:
        found = driver.find(ROOT)
    except driver.DriverMissing as error:
        before = cdi_files.read(place)
        if before.spec is None or before.missing:
            raise NoSpec(str(error)) from error
        return before.spec  # made of a driver that is not where one is looked for
    running = driver.kernel_version(ROOT)
    if running is not None and running != found.version:
        raise NoSpec(
            f"the driver's libraries are {found.version}, and the kernel runs {running}: reboot, "
            "or load the module of the new driver"
        )
    document = found.cdi()
    try:
        if cdi_files.write(place, cdi_files.as_text(document)):
            log("driver-spec-renewed", cdi=str(place), driver=found.version)
    except OSError as error:
        # It is kept for others to see; what is given does not depend on it.
        log("driver-spec-not-written", "warning", cdi=str(place), error=str(error))
    return cdi.from_document(document)


def _is_simulated(place: Path) -> bool:
    spec = cdi_files.read(place).spec
    mounts = () if spec is None else spec.everything.mounts
    return any(mount.container_path == SIMULATED_DEVICE for mount in mounts)
