# SPDX-License-Identifier: Apache-2.0
"""Putting a node together from its configuration: directories, ledger, mounts, driver."""

from __future__ import annotations

import grp
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from gpushare import patience, simulator
from gpushare.config import Config
from gpushare.daemon import clock
from gpushare.daemon.audit.truth import Truth
from gpushare.daemon.cards import calibration, dev_char, driver_spec, upgrade
from gpushare.daemon.cards.calibration import Contexts
from gpushare.daemon.cards.card import Card, DriverError, DriverSilent, Generation
from gpushare.daemon.cards.nvml import Nvml
from gpushare.daemon.identity.holders import holders
from gpushare.daemon.log import attach, log
from gpushare.daemon.memory import hard_limit
from gpushare.daemon.node import Loaded, Node, simulator_env
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.service.loop import Loop
from gpushare.daemon.service.watch import Watch
from gpushare.daemon.service.worker import Worker
from gpushare.daemon.store.doubt import Doubt
from gpushare.daemon.store.history import History
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.overrides import Overrides
from gpushare.daemon.tenants import SIZE_BYTES, Tenants
from gpushare.errors import UserError
from gpushare.oci import cdi, platform
from gpushare.oci.driver import Driver as DriverFiles


class CannotStart(UserError):
    """The daemon cannot run with this configuration on this machine."""


def lock(config: Config) -> int:
    """Return the lock that one daemon per run_dir holds; CannotStart where another has it."""
    for folder in (config.run_dir, config.state_dir):
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise CannotStart(f"{folder}: {error.strerror}; set run_dir and state_dir") from error
    _refuse_writable(config.run_dir)
    fd = os.open(config.run_dir / patience.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        patience.take(fd)
    except BlockingIOError:
        holder = os.pread(fd, 16, 0).decode(errors="replace").strip()
        os.close(fd)
        raise CannotStart(
            f"another gpushared (pid {holder or 'unknown'}) has {config.run_dir}; "
            "stop it first, or set run_dir"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _refuse_writable(folder: Path) -> None:
    """Whoever can write here could put a socket of their own in the place of ours."""
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise CannotStart(f"{folder} can be written by others than root; chmod 755 it")


def read_gid(config: Config) -> int | None:
    """Return the group that may read, None for everybody; CannotStart where there is none such."""
    if config.read_group is None:
        return None
    try:
        return grp.getgrnam(config.read_group).gr_gid
    except KeyError:
        raise CannotStart(
            f"read_group: there is no group {config.read_group}; groupadd it"
        ) from None


def build(config: Config, loop: Loop) -> Node:
    """Return the node; what it had before is in its ledger but not taken over yet."""
    try:
        machine = platform.this_platform()
    except ValueError as error:
        raise CannotStart(str(error)) from error
    tenants: dict[str, Ledger] = {}
    history = _history(config, tenants)  # before the rest, which may have something to tell
    doubt = Doubt(config.run_dir / "doubt", clock.boot_id())
    tenants["ledger"] = Ledger(config.run_dir / "ledger.db", clock.boot_id(), doubt)
    node = Node(
        config=config,
        platform=machine,
        ledger=tenants["ledger"],
        doubt=doubt,
        mounts=TenantMounts(config.run_dir / "tenants", config.mount_namespace, SIZE_BYTES),
        overrides=Overrides(config.state_dir),
        card_overrides=Overrides(config.state_dir, "cards.json", "gpushare card"),
        tenants=Tenants(),
        loop=loop,
        watch=Watch(loop),
        decide=Worker("decide"),
        names=Worker("names"),
        history=history,
    )
    if node.mounts.warning:
        log("mounts-own-namespace", "warning", note=node.mounts.warning)
    load_driver(node)
    return node


def _history(config: Config, tenants: Mapping[str, Ledger]) -> History:
    """Return the history, which is told of every event from now on; names as the ledger has them.

    There may be none yet.
    """

    def who(key: str) -> tuple[str, str] | None:
        entry = tenants["ledger"].entries.get(key) if tenants else None
        return None if entry is None else (entry.id, entry.title)

    history = History(
        config.state_dir,
        clock.boot_id(),
        days=config.history_days,
        most_bytes=config.history_bytes,
        who=who,
    )
    attach(history.note)
    return history


def load_driver(node: Node) -> None:
    """Load the driver that the CDI spec describes; where that fails, note why and go on without.

    Containers that ask for no GPU must start on any machine.
    """
    try:
        node.driver = _load(node)
    except (DriverError, cdi.CdiError, driver_spec.NoSpec, OSError, yaml.YAMLError) as error:
        why = f"no driver: {error}"
        if why != node.why_none:
            log("driver-missing", "error", why=str(error))
        node.why_none = why
        return
    node.signs = upgrade.look(node.driver.files, simulated=node.driver.is_simulated)
    dev_char.link(node.driver.files)
    _calibrate(node, node.driver.contexts)
    log(
        "driver-loaded",
        cdi=str(driver_spec.path(node.config)),
        driver=node.driver.nvml.driver_version,
        cuda=node.driver.nvml.cuda_version,
        cards=[card.model for card in node.driver.cards],
        memory_limits=node.driver.nvml.has_limits,
    )


def _load(node: Node) -> Loaded:
    config = node.config
    files = driver_spec.load(config)
    slow_motion = _slow_motion(files)  # before we are one of those who are attached to the device
    nvml = _opened(node, files)
    contexts = Contexts(config.state_dir, nvml.driver_version)
    truth = Truth(
        nvml,
        node.ledger,
        node.tenants,
        foreign_half_life=config.timing.foreign_half_life,
        holds=holders(simulator_env(files), driver_spec.ROOT),
        learned=lambda card, tenant, size: _know(node, contexts, card, tenant, size),
    )
    truth.changed = lambda now: node.decide.submit(lambda: understand(node, now))
    # Whoever is on a card by now is foreign, and the probe, which comes later, is not.
    truth.look()
    return Loaded(files, nvml, nvml.cards(), contexts, truth, slow_motion)


def _opened(node: Node, files: DriverFiles) -> Nvml:
    """Return NVML once its library is loaded; one that takes long is waited for at the next call.

    DriverError, and DriverSilent where it takes longer than a question may.
    """
    nvml, library = node.opening, Path(files.nvml.host_path)
    node.opening = None
    if nvml is not None and nvml.library != library:
        nvml.close()
        nvml = None
    nvml = nvml or Nvml(library, simulator_env(files), node.config.timing.driver)
    try:
        nvml.open()
    except DriverSilent:
        node.opening = nvml
        nvml.afterwards(lambda: node.decide.submit(lambda: load_driver_late(node)))
        raise
    except DriverError:
        nvml.close()
        raise
    return nvml


def understand(node: Node, generation: Generation) -> None:
    """Take over cards that are not as they were; the decide thread.

    Their capacity is what they say now; whoever was promised a card by its UUID keeps it, whatever
    its index. What the driver's files are is looked at before anybody is given them.
    """
    driver = node.driver
    if driver is None:
        return
    node.driver = replace(driver, cards=driver.nvml.cards())
    if driver.contexts.renew(driver.nvml.driver_version):
        _calibrate(node, driver.contexts)
        hard_limit.expect_none(node)
        hard_limit.set_right(node)
    driver.truth.settle(generation)


def _calibrate(node: Node, contexts: Contexts) -> None:
    contexts.expect()
    threading.Thread(target=measure_contexts, args=(node,), name="calibration", daemon=True).start()


def _slow_motion(files: DriverFiles) -> float:
    """Return what a simulated driver multiplies every duration by; 1 for a real one."""
    for device in simulator_env(files).values():
        try:
            return simulator.slow_motion(Path(device))
        except (OSError, ValueError) as error:
            log("slow-motion-unknown", "warning", error=str(error))
    return 1.0


def load_driver_late(node: Node) -> None:
    """Load a driver that was not there at the start; the decide thread."""
    if node.driver is None:
        load_driver(node)


def measure_contexts(node: Node) -> None:
    """Measure what a context takes of each model that is not known yet, one after another."""
    driver = node.driver
    if driver is None:
        return
    library = Path(driver.files.cuda.host_path)
    probe = calibration.Probe(node.config.probe, library, driver.env)
    try:
        for card in driver.cards:
            if driver.contexts.is_measured(card):
                continue
            size = calibration.measure(card, driver.nvml, probe, driver.truth.excuse)
            if size is not None:
                driver.contexts.keep(card, size)
                _tell(node, driver.contexts, card)
    finally:
        driver.contexts.settle()


def _know(node: Node, contexts: Contexts, card: Card, tenant: str, size: int) -> None:
    """Learn from a tenant what a context takes, and tell those who do not know yet."""
    if not contexts.is_measured(card):
        contexts.learn(card, tenant, size)
        _tell(node, contexts, card)


def _tell(node: Node, contexts: Contexts, card: Card) -> None:
    """Write what a context takes of `card` into the grant pages of its tenants."""

    def tell() -> None:
        for key, pages in node.tenants.pages.items():
            entry = node.ledger.entries.get(key)
            for number, holding in enumerate(entry.holdings if entry else ()):
                size = contexts.bytes_of(card)
                if holding.uuid == card.uuid and pages.grant.context_bytes(number) != size:
                    pages.grant.set_context(number, size)
                    pages.grant.publish()

    node.decide.submit(tell)
