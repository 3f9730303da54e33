# SPDX-License-Identifier: Apache-2.0
"""gpushared takes a program's memory off the card and puts it back; the same by the driver alone.

The scenario of `gpushare verify --evict`, with gpushare-probe and with PyTorch. Then a program
whose memory the driver refuses to move, which is to go on as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpushare.verify import Report
from gpushare.verify.memory import CONTENT_BYTES, EvictionScenario
from gpushare.verify.runners import HostRunner, ProbeTenant
from tests.stack import Stack

from . import overhead, torch_view
from .containers import row, stack
from .driver import DriverPaths
from .process import ask, child, environment
from .report import NotMeasured, ReportRow

SEED = 7
MANAGED_BYTES = 64 << 20
EVENTS = {"tenant-evicted": "the eviction took", "tenant-restored": "the restore took"}
NS = 1_000_000_000


class TorchSleeper(HostRunner):
    """Starts PyTorch instead of the probe as the container that sleeps."""

    def run(self, name: str, quota: Mapping[str, str], *command: str) -> list[str]:
        argv = super().run(name, quota, *command)
        return [*argv[:-1], *child("contents")] if name.endswith("sleeper") else argv


@dataclass
class WatchedEviction(EvictionScenario):
    """The scenario, and how much less of `driver`'s card NVML says is in use once it is evicted."""

    driver: DriverPaths = field(kw_only=True)
    freed_bytes: int = 0

    def _evicted(self, sleeper: ProbeTenant) -> int:
        with overhead.probe(self.driver, "watcher") as watcher:
            before = overhead.card(watcher, self.driver)["used"]
            evicted_bytes = super()._evicted(sleeper)
            self.freed_bytes = before - overhead.card(watcher, self.driver)["used"]
        return evicted_bytes


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    yield from _alone(driver)
    with stack(driver) as made:
        yield from _scenario(made, driver, made.host(), "the probe")
        yield from _refused(made)
        env = environment(driver.env, made.env)
        try:
            torch_view.importable(env)
        except NotMeasured as error:
            yield ReportRow("PyTorch", missing=str(error))
            return
        sleeper = TorchSleeper(made.cli, made.installation.probe, env)
        yield from _scenario(made, driver, sleeper, "PyTorch")


def _alone(driver: DriverPaths) -> Iterator[ReportRow]:
    """The driver's own steps with a program that has what that of the scenario has."""
    with overhead.probe(driver, "alone") as program:
        program.ask(f"alloc {CONTENT_BYTES}")
        program.ask(f"write {SEED}")
        argv = child("checkpoint", str(driver.cuda), str(program.process.pid))
        for name, step in ask(argv, environment(driver.env))["steps"].items():
            took = ReportRow(f"the driver alone: {name}", int(step["seconds"] * NS), "ns")
            yield ReportRow(took.name, missing=step["error"]) if step["code"] else took
        yield _intact(program, "the driver alone: the program has its data")


def _scenario(
    made: Stack, driver: DriverPaths, engine: HostRunner, title: str
) -> Iterator[ReportRow]:
    seen, report = len(made.events()), Report()
    steps = WatchedEviction(engine, made.cli, report, prefix="measured-", driver=driver)
    steps.run()
    for check in report.checks:
        yield torch_view.renamed(row(check), f"{title}: ")
    yield ReportRow(f"{title}: freed on the card, by NVML", steps.freed_bytes, "bytes")
    for event in made.events()[seen:]:
        if event["event"] in EVENTS:
            name = f"{title}: {EVENTS[event['event']]}"
            note = f"{event['driver_seconds']} s of it in the driver"
            yield ReportRow(name, int(event["seconds"] * NS), "ns", note)


def _refused(made: Stack) -> Iterator[ReportRow]:
    """Managed memory: refused by gpushared, and by the driver if that is asked."""
    argv = made.host().run("managed", {"memory": "1GiB"})
    with ProbeTenant("managed", argv, made.environment) as program:
        program.start()
        program.ask(f"alloc cuMemAllocManaged {MANAGED_BYTES}")
        program.ask(f"write {SEED}")
        for who, options in (("gpushared", ()), ("the driver", ("--force",))):
            done = made.gpushare("evict", "managed", *options, check=False)
            name = f"{who} refuses to evict managed memory"
            yield ReportRow.claim(name, bool(done.returncode), done.stdout)
            yield _intact(program, f"{name}, and the program has its data")


def _intact(program: ProbeTenant, name: str) -> ReportRow:
    checked = program.ask(f"check {SEED}")
    held = checked["code"] == checked["different"] == 0 < checked["bytes"]
    return ReportRow.claim(name, held, checked)
