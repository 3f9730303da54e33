# SPDX-License-Identifier: Apache-2.0
"""The driver is loaded: its CDI spec, its NVML, what a context takes, and the sampler of it all.

A driver that is missing at the start is loaded later, and one that is replaced is taken over. All
of this is the decide thread's, but for the measuring of contexts, which has a thread of its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import yaml

from gpushare.config import Config
from gpushare.daemon.audit.audit import Audit, IdleBackoff
from gpushare.daemon.cards import context_size
from gpushare.daemon.cards.context_size import ContextSizes
from gpushare.daemon.cards.driver_client import DriverError, DriverGeneration, DriverTimeout
from gpushare.daemon.cards.nvml_client import Nvml
from gpushare.daemon.core.log import log
from gpushare.daemon.identity.pid_resolver import device_clients
from gpushare.daemon.node import LoadedDriver, Node, NoDriver
from gpushare.daemon.observe.compute_usage import ComputeMeter
from gpushare.daemon.observe.sampler import UsageSampler, update_peaks
from gpushare.daemon.placement.model import Card
from gpushare.daemon.state import DaemonState
from gpushare.errors import UserError
from gpushare.host import cdi_files
from gpushare.host import driver as host_driver
from gpushare.oci import cdi, cuda_compat
from gpushare.oci.cdi import CdiError
from gpushare.oci.driver_files import (
    SIMULATED_DEVICE,
    DriverFiles,
    from_cdi,
    simulator_env,
)
from gpushare.simulator import device_file


class DriverLoader:
    """Loads the driver of `state`; `sampler` is there once a driver is."""

    def __init__(self, state: DaemonState) -> None:
        self.sampler: UsageSampler | None = None
        self._state = state
        self._opening: Nvml | None = None  # a driver whose library is still being loaded

    def load(self) -> None:
        """Load the driver that the CDI spec describes, unless it is; if that fails, note why.

        Containers that ask for no GPU must start on any machine.
        """
        state = self._state
        if state.node.driver is not None:
            return
        try:
            driver = state.node.driver = self._load()
        except (DriverError, CdiError, NoSpec, OSError, ValueError, yaml.YAMLError) as error:
            why = f"no driver: {error}"
            if why != state.node.no_driver_reason:
                log("driver-missing", "error", reason=str(error))
            state.node.no_driver_reason = why
            return
        state.node.fingerprint = driver_fingerprint(driver.files, simulated=driver.is_simulated)
        link_devices(driver.files)
        state.params.prepare()
        self._measure_contexts(driver)
        log(
            "driver-loaded",
            cdi=str(cdi_spec_path(state.node.config)),
            driver=driver.nvml.driver_version,
            cuda=driver.nvml.loaded.cuda_version,
            cards=[card.model for card in driver.cards],
            memory_limits=driver.nvml.has_limits,
        )
        state.ledger.changed()

    def excuse(self, pid: int) -> None:
        """Never count `pid`, a program of the daemon's own, as a non-tenant; any thread."""
        if self.sampler is not None:
            self.sampler.excuse(pid)

    def take_over(self, generation: DriverGeneration) -> None:
        """Take over cards that are not as they were.

        Their capacity is what they say now; a tenant keeps a card that it has by its UUID, whatever
        the card's index. The driver's files are compared before the next container gets them.
        """
        state, sampler = self._state, self.sampler
        driver = state.node.driver
        if driver is None or sampler is None:
            return
        state.node.driver = replace(driver, cards=driver.nvml.cards())
        if driver.contexts.renew(driver.nvml.driver_version):
            state.limits.set_all_again()
        self.measure_missing()  # also what the loss of the driver has interrupted
        sampler.settle(generation)
        state.ledger.changed()

    def _load(self) -> LoadedDriver:
        state = self._state
        if state.node.config.driver_released:
            raise NoSpec(state.node.config.driver_released)
        files = load_driver_files(state.node.config)
        if not simulator_env(files) and not has_kernel_module(ROOT):
            raise NoSpec("the kernel module nvidia is not loaded. Run modprobe nvidia")
        # Before we are one of the simulated device's clients.
        devices = simulator_env(files).values()
        time_scale = next((device_file.time_scale(Path(device)) for device in devices), 1.0)
        nvml = self._open(files)
        contexts = ContextSizes(state.node.config.state_dir, nvml.driver_version)
        sampler = UsageSampler(
            nvml,
            state.ledger,
            state.tenants,
            state.observed,
            holds=(lambda _: True) if devices else device_clients(ROOT),
            changed=lambda now: state.decide.submit(lambda: self.take_over(now)),
        )
        # A process that uses a card by now is no tenant's; the probe, which comes later, is ours.
        sampler.look()
        self.sampler = sampler
        return LoadedDriver(files, nvml, nvml.cards(), contexts, time_scale)

    def _open(self, files: DriverFiles) -> Nvml:
        """Return NVML once its library is loaded; one that takes long is taken up at the next call.

        DriverError, and DriverTimeout if it takes longer than a question may.
        """
        nvml, library = self._opening, Path(files.nvml.host_path)
        self._opening = None
        if nvml is not None and nvml.library != library:
            nvml.close()
            nvml = None
        nvml = nvml or Nvml(
            library, simulator_env(files), self._state.node.config.timing.driver_timeout_seconds
        )
        try:
            nvml.open()
        except DriverTimeout:
            self._opening = nvml
            nvml.afterwards(lambda: self._state.decide.submit(self.load))
            raise
        except DriverError:
            nvml.close()
            raise
        return nvml

    def measure_missing(self) -> None:
        """Measure again the contexts that could not be measured: their cards were full."""
        driver = self._state.node.driver
        if (
            driver is None
            or self._state.node.driver_fault
            or all(driver.contexts.is_measured(card) or card.is_divided for card in driver.cards)
        ):
            return
        self._measure_contexts(driver)

    def _measure_contexts(self, driver: LoadedDriver) -> None:
        driver.contexts.expect()
        threading.Thread(target=self._measure, name="calibration", daemon=True).start()

    def _measure(self) -> None:
        """Measure what a context takes of each model that is not known yet, one after another."""
        driver, sampler = self._state.node.driver, self.sampler
        if driver is None or sampler is None:
            return
        library = Path(driver.files.cuda.host_path)
        probe = context_size.ContextProbe(self._state.node.config.probe, library, driver.env)
        try:
            for card in driver.cards:
                if driver.contexts.is_measured(card) or card.is_divided:
                    continue
                size = context_size.measure_context(card, driver.nvml, probe, sampler.excuse)
                if size is not None:
                    driver.contexts.keep(card, size)
                    self._publish_context_size(driver.contexts, card)
        finally:
            driver.contexts.settle()

    def _publish_context_size(self, contexts: ContextSizes, card: Card) -> None:
        """Write what a context takes of `card` into the grant pages of its tenants."""
        state = self._state

        def publish() -> None:
            for key, pages in state.tenants.pages.items():
                record = state.ledger.entries.get(key)
                for number, allocation in enumerate(record.allocations if record else ()):
                    size = contexts.sizes.get(card.model, 0)
                    if allocation.uuid == card.uuid and pages.grant.context_bytes(number) != size:
                        pages.grant.set_context(number, size)
                        pages.grant.publish()

        state.decide.submit(publish)


class SamplingLoop:
    """Samples the driver again and again, and has what follows from it done; the truth thread.

    `beat` is called each time, and `corrected` where what was charged changes a share.
    """

    def __init__(
        self,
        state: DaemonState,
        loader: DriverLoader,
        audit: Audit,
        beat: Callable[[], None],
        corrected: Callable[[], None],
    ) -> None:
        self._state, self._loader = state, loader
        self._audit, self._beat = audit, beat
        self._meter = ComputeMeter(state.ledger, state.tenants, state.observed, corrected=corrected)
        self._idle = IdleBackoff(state.ledger, state.tenants, state.observed)

    def run(self, stop: threading.Event) -> None:
        """Sample until `stop` is set."""
        while True:
            hurried = self._audit.wait(self._idle.slower)
            self._beat()
            if stop.is_set():
                return
            sampler = self._loader.sampler
            if self._state.node.driver is None or sampler is None:
                continue
            if hurried or not self._idle.look(sampler):
                self._sample(sampler)
            else:
                self._state.limits.update_when_due()

    def _sample(self, sampler: UsageSampler) -> None:
        observed = self._state.observed
        sampler.look()
        observed.peaks = update_peaks(observed.peaks, observed.usage)
        self._meter.look()
        self._audit.look()
        self._idle.note()
        if not observed.usage.stale:
            self._state.limits.update_soon()


# The driver's files, and an upgrade of the driver beneath a running daemon. A package manager
# replaces the libraries while the kernel runs the old module, and the majors of devices change when
# a module is loaded again. Both are checked before every create, which costs four look-ups, and
# every few seconds. The CDI spec that is the daemon's own is made again then, and at every start;
# any other is read as it is. A container gets the driver as it is then, or a refusal with the fix;
# running containers keep the files that they have open.

ROOT: Final = Path("/")
LINKS: Final = Path("/dev/char")


class NoSpec(UserError):
    """There is no driver that could be described, or it is between two versions."""


def has_kernel_module(root: Path) -> bool:
    """Whether NVML may be asked: as root without the module, it would make /dev/nvidiactl."""
    nodes = ("dev/nvidiactl", "dev/dxg")  # gVisor does not show the module, and WSL has none
    is_loaded = host_driver.kernel_version(root) is not None
    return is_loaded or any((root / node).exists() for node in nodes)


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
        driver = host_driver.find(ROOT)
    except host_driver.DriverMissing as error:
        before = cdi_files.read_spec(place)
        if before is None or not all(
            Path(mount.host_path).exists() for mount in before.everything.mounts
        ):
            raise NoSpec(str(error)) from error
        return before  # made of a driver that is not where one is looked for
    running = host_driver.kernel_version(ROOT)
    if running is not None and running != driver.version:
        raise NoSpec(
            f"the driver's libraries are {driver.version}, and its kernel module is {running}: "
            "reboot, or load the module of the new driver"
        )
    document = driver.cdi()
    try:
        if cdi_files.write_spec(place, cdi_files.format_spec(document)):
            log("driver-cdi-spec-written", cdi=str(place), driver=driver.version)
    except OSError as error:
        # It is kept to be shown; no allocation depends on it.
        log("driver-cdi-spec-write-failed", "warning", cdi=str(place), error=str(error))
    return cdi.from_document(document)


def _is_simulated(place: Path) -> bool:
    spec = cdi_files.read_spec(place)
    mounts = () if spec is None else spec.everything.mounts
    return any(mount.container_path == SIMULATED_DEVICE for mount in mounts)


def driver_fingerprint(files: DriverFiles, *, simulated: bool) -> tuple[object, ...]:
    """Return all that changes with the driver: the module's version, the majors, the libraries.

    A simulated driver has nothing of the kernel's.
    """
    libraries = (files.cuda.host_path, files.nvml.host_path)
    majors = ""
    with contextlib.suppress(OSError):
        if not simulated:
            majors = (ROOT / "proc/devices").read_text(encoding="ascii", errors="replace")
    return (_module_version(simulated=simulated), majors, *map(_identity, libraries))


def _module_version(*, simulated: bool) -> str | None:
    return None if simulated else host_driver.kernel_version(ROOT)


def take_over_changed_driver(node: Node) -> None:
    """Take over a driver that has changed; NoDriver where it cannot be used now."""
    loaded = node.driver
    if loaded is None:
        return
    loaded.nvml.release(node.config.driver_released)
    if node.config.driver_released:
        node.driver_fault = f"the driver cannot be used: {node.config.driver_released}"
        raise NoDriver(node.driver_fault)
    now = driver_fingerprint(loaded.files, simulated=loaded.is_simulated)
    if node.fingerprint is None:
        node.fingerprint = now
    if now == node.fingerprint:
        node.driver_fault = ""
        return
    fault = _take_over(loaded, node)
    if fault != node.driver_fault:
        node.driver_fault = fault
        if fault:
            log("driver-replaced", "error", reason=fault)
    if fault:
        raise NoDriver(fault)


def _take_over(loaded: LoadedDriver, node: Node) -> str:
    """Read the spec again; return why the driver cannot be used, empty where it can be used."""
    place = cdi_spec_path(node.config)
    try:
        files = load_driver_files(node.config)
    except (NoSpec, CdiError, OSError, yaml.YAMLError) as error:
        return f"the driver has changed: {error}"
    paths = (files.cuda.host_path, files.nvml.host_path)
    missing = next((path for path in paths if _identity(path) is None), "")
    if missing:
        return (
            f"{place} is for another driver, because {missing} is not there: regenerate it, "
            f"for example nvidia-ctk cdi generate --output={place}"
        )
    version = _version(files) or _module_version(simulated=loaded.is_simulated)
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
    node.driver = replace(loaded, files=files)
    node.fingerprint = driver_fingerprint(files, simulated=loaded.is_simulated)
    link_devices(files)
    log("driver-cdi-spec-updated", cdi=str(place), driver=loaded.nvml.driver_version)
    return ""


def _is_other(version: str | None, loaded: LoadedDriver) -> bool:
    """Whether the files' version is known and not the one that NVML speaks to."""
    own = cuda_compat.version(loaded.nvml.driver_version)
    return version is not None and cuda_compat.version(version) != own


def _version(files: DriverFiles) -> str | None:
    """Return the version in the name of the real library, None where there is none in it."""
    name = Path(files.cuda.host_path).name
    version = name.partition(".so.")[2]
    return version if version.count(".") and version.partition(".")[0].isdigit() else None


def _identity(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(f"{ROOT}/{path}")  # noqa: PTH116 - before every create
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def link_devices(files: DriverFiles, folder: Path = LINKS) -> list[str]:
    """Make the links of the driver's nodes that this host has; return the names of new ones.

    systemd finds a device that a container may use by the link /dev/char/MAJOR:MINOR when it writes
    the device rules anew, at every `systemctl daemon-reload`; without it the running container
    loses the GPU. udev makes the links of devices in sysfs, and NVIDIA's are not there.
    """
    links = []
    for node in dict.fromkeys(files.cdi.everything.nodes):
        number = _device_number(Path(node.host_path))
        if number is None:
            continue
        own = os.major(number), os.minor(number)
        if (node.major, node.minor) not in {(None, None), own}:
            continue  # another's
        place = folder / f"{own[0]}:{own[1]}"
        try:
            if _device_number(place) == number:
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
        links.append(place.name)
    if links:
        log("device-links-created", links=links)
    return links


def _device_number(place: Path) -> int | None:
    """Return the number of the character device that `place` leads to, None if it leads to none."""
    try:
        status = place.stat()
    except OSError:
        return None
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else None
