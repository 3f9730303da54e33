# SPDX-License-Identifier: Apache-2.0
"""The driver is loaded: its CDI spec, its NVML, what a context takes, and the sampler of it all.

A driver that is missing at the start is loaded later, and one that is replaced is taken over. All
of this is the decide thread's, but for the measuring of contexts, which has a thread of its own.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import yaml

from gpushare import simulator
from gpushare.daemon.cards import context_size
from gpushare.daemon.cards.context_size import ContextSizes
from gpushare.daemon.cards.driver_client import DriverError, DriverGeneration, DriverTimeout
from gpushare.daemon.cards.nvml_client import Nvml
from gpushare.daemon.core.log import log
from gpushare.daemon.identity.pid_resolver import device_clients
from gpushare.daemon.limits import driver_limits, driver_version
from gpushare.daemon.node import LoadedDriver
from gpushare.daemon.observe.sampler import UsageSampler
from gpushare.daemon.placement.model import Card
from gpushare.daemon.state import DaemonState
from gpushare.oci import cdi
from gpushare.oci.driver_files import DriverFiles, simulator_env


class DriverLoader:
    """Loads the driver of `state`; `sampler` is there once a driver is."""

    def __init__(self, state: DaemonState) -> None:
        self.sampler: UsageSampler | None = None
        self._state = state
        self._opening: Nvml | None = None  # a driver whose library is still being loaded

    def load(self) -> None:
        """Load the driver that the CDI spec describes; if that fails, note why.

        Containers that ask for no GPU must start on any machine.
        """
        state = self._state
        try:
            driver = state.node.driver = self._load()
        except (
            DriverError,
            cdi.CdiError,
            driver_version.NoSpec,
            OSError,
            yaml.YAMLError,
        ) as error:
            why = f"no driver: {error}"
            if why != state.node.no_driver_reason:
                log("driver-missing", "error", reason=str(error))
            state.node.no_driver_reason = why
            return
        state.node.fingerprint = driver_version.driver_fingerprint(
            driver.files, simulated=driver.is_simulated
        )
        driver_version.link_devices(driver.files)
        self._measure_contexts(driver)
        log(
            "driver-loaded",
            cdi=str(driver_version.cdi_spec_path(state.node.config)),
            driver=driver.nvml.driver_version,
            cuda=driver.nvml.cuda_version,
            cards=[card.model for card in driver.cards],
            memory_limits=driver.nvml.has_limits,
        )
        state.ledger.changed()

    def excuse(self, pid: int) -> None:
        """Never count `pid`, a program of the daemon's own, as a non-tenant; any thread."""
        if self.sampler is not None:
            self.sampler.excuse(pid)

    def load_late(self) -> None:
        """Load a driver that was not there at the start."""
        if self._state.node.driver is None:
            self.load()

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
            self._measure_contexts(driver)
            driver_limits.mark_limits_lost(state)
            driver_limits.retry_driver_limits(state)
        sampler.settle(generation)
        state.ledger.changed()

    def _load(self) -> LoadedDriver:
        state = self._state
        files = driver_version.load_driver_files(state.node.config)
        time_scale = _time_scale(files)  # before we are one of the simulated device's clients
        nvml = self._open(files)
        contexts = ContextSizes(state.node.config.state_dir, nvml.driver_version)
        sampler = UsageSampler(
            nvml,
            state.ledger,
            state.tenants,
            state.observed,
            non_tenant_half_life=state.node.config.timing.non_tenant_half_life_seconds,
            holds=device_clients(simulator_env(files), driver_version.ROOT),
            learned=lambda card, tenant, size: self._learn(contexts, card, tenant, size),
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
            nvml.afterwards(lambda: self._state.decide.submit(self.load_late))
            raise
        except DriverError:
            nvml.close()
            raise
        return nvml

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
                figures = context_size.measure_context(card, driver.nvml, probe, sampler.excuse)
                if figures is not None:
                    driver.contexts.keep(card, figures)
                    self._publish_context_size(driver.contexts, card)
        finally:
            driver.contexts.settle()

    def _learn(self, contexts: ContextSizes, card: Card, tenant: str, size: int) -> None:
        """Learn from a tenant what a context takes, where it is not known."""
        if not contexts.is_measured(card):
            contexts.learn(card, tenant, size)
            self._publish_context_size(contexts, card)

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
                        pages.grant.set_rounding(number, *contexts.rounding(card))
                        pages.grant.publish()

        state.decide.submit(publish)


def _time_scale(files: DriverFiles) -> float:
    """Return what a simulated driver multiplies every duration by; 1 for a real one."""
    for device in simulator_env(files).values():
        try:
            return simulator.time_scale(Path(device))
        except (OSError, ValueError) as error:
            log("simulator-time-scale-unknown", "warning", error=str(error))
    return 1.0
