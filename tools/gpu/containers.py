# SPDX-License-Identifier: Apache-2.0
"""The scenario of gpushare.verify on the real card: daemon, `gpushare run`, runc containers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpushare.install import InstallError
from gpushare.quota.size import format_size
from gpushare.verify import CheckResult, Report, Sizes
from gpushare.verify.memory import MemoryScenario
from gpushare.verify.runners import TenantRunner
from tests.stack import Stack
from tests.stack.bundle import PROBE, Bundle
from tests.stack.card import real_card
from tests.stack.program import Missing

from . import torch_view
from .driver import DriverPaths
from .filtered import quota
from .process import ask, child, environment
from .report import NotMeasured, ReportRow

GIB = 1 << 30
PLAIN = Sizes()


@dataclass
class Runc:
    """runc alone as an engine of gpushare.verify: a bundle per tenant, run through the launcher."""

    stack: Stack
    env: dict[str, str]
    name: str = "runc"
    bundles: dict[str, Bundle] = field(default_factory=dict)

    def prepare(self, probe: Path) -> None:
        """Bundles are made where they are run."""

    def run(self, name: str, quota: Mapping[str, str], *command: str) -> list[str]:
        made = self.bundles[name] = Bundle(self.stack, quota=quota, args=(*PROBE, *command))
        made.id = name
        return made.argv("run", "--bundle", str(made.path), name)

    def kill(self, name: str) -> list[str]:
        return self.bundles[name].argv("kill", name, "KILL")

    def remove(self, name: str) -> None:
        self.bundles.pop(name).remove()

    def finish(self) -> None:
        """What is left goes with the stack."""


def host(driver: DriverPaths) -> Iterator[ReportRow]:
    with stack(driver) as made:
        yield from scenario(made.host(), made, driver)


def runc(driver: DriverPaths) -> Iterator[ReportRow]:
    with stack(driver) as made:
        yield from scenario(Runc(made, env=dict(made.env)), made, driver)


def pytorch(driver: DriverPaths) -> Iterator[ReportRow]:
    torch_view.importable(environment(driver.env))
    with stack(driver) as made:
        memory_bytes = quota(driver)
        size = format_size(memory_bytes).replace(" ", "")
        argv = [*made.cli, "run", "--name", "torch", "--memory", size, "--", *child("pytorch")]
        env = environment(driver.env, made.env)
        yield from torch_view.judged(ask(argv, env, torch_view.SECONDS), memory_bytes)


@contextmanager
def stack(driver: DriverPaths) -> Iterator[Stack]:
    """A private daemon on the real card; NotMeasured where one cannot be had."""
    if driver.named and not driver.cdi:
        raise NotMeasured("a driver in a folder named needs --cdi")
    if os.geteuid() != 0:
        raise NotMeasured("a private daemon needs root")
    try:
        spec = driver.cdi or real_card()
        if spec is None:
            raise NotMeasured("the kernel shows no NVIDIA driver")
        made = Stack(cdi=spec)
    except (Missing, InstallError, OSError) as error:
        raise NotMeasured(str(error)) from error
    with made:
        made.start_daemon()
        yield made


def scenario(engine: TenantRunner, made: Stack, driver: DriverPaths) -> Iterator[ReportRow]:
    report = Report()
    MemoryScenario(
        engine, made.cli, report, prefix="measured-", sizes=sizes(driver.free_bytes)
    ).run()
    yield from map(row, report.checks)


def sizes(card_bytes: int) -> Sizes:
    """Return sizes that fit the card with room for what the driver and others keep of it."""
    parts = 1
    while (PLAIN.large + PLAIN.resized + 2 * GIB) // parts > card_bytes:
        parts *= 2
    return replace(
        PLAIN,
        small=PLAIN.small // parts,
        large=PLAIN.large // parts,
        resized=PLAIN.resized // parts,
    )


def row(check: CheckResult) -> ReportRow:
    return ReportRow.claim(check.claim, check.passed, check.observed)
