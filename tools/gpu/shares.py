# SPDX-License-Identifier: Apache-2.0
"""Shares of compute on the real card: the same tenants without gpushare and with it, in one run.

What a tenant had of the card is told by what it got done, beside what the same work gets done
alone: no figure of the driver's, and none of gpushare's, is believed.
"""

from __future__ import annotations

import operator
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gpushare.protocol.rows import TenantStatus
from gpushare.verify.runners import ProbeFailed
from tests.stack import Stack
from tools.bench.result import percentile
from tools.bench.shares.card_time import Served, errors, windows
from tools.bench.shares.scenario import Run

from . import torch_view
from .containers import stack
from .driver import DriverPaths
from .process import Child, child, environment
from .report import NotMeasured, ReportRow
from .waits import calibrated

SECONDS = 6.0
SETTLED_NS = 1_000_000_000  # from the begin of the work: estimates are learned by then
ALONE_SECONDS = 1.5
START_NS = 500_000_000  # until all have been told when to begin
MEMORY_MIB = 4096  # enough for PyTorch; on a small card an eighth of it
#: An inference: 3 ms of the card, 40 times a second.
RATE, BATCHES = 40, 3

US, MS, SECOND_NS = 1_000, 1_000_000, 1_000_000_000
#: (Moment, units done by then), moments in ns on one clock for all.
Entries = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class LoadedTenant:
    """`load` is child/tenant.py's, {rounds} in it standing for those of the duration before it.

    `part` is what it must get of the card, in percent, None where that is not said. `serves` are
    requests that come at random in place of work without end.
    """

    load: str
    quota: Mapping[str, str] = field(default_factory=dict)
    part: float | None = None
    serves: bool = False


def kernels(duration_ns: int, kind: str = "kernels", *more: object) -> str:
    return " ".join(map(str, (kind, duration_ns, "{rounds}", *more)))


def fixed(cores: int, load: str) -> LoadedTenant:
    return LoadedTenant(load, {"cores": str(cores), "policy": "fixed-share"}, cores)


def burst(cores: int, load: str) -> LoadedTenant:
    return LoadedTenant(load, {"cores": str(cores), "policy": "burst-share"}, cores)


def weighted(weight: int, part: float, load: str) -> LoadedTenant:
    quota = {"policy": "native-burst-share", "weight": str(weight)}
    return LoadedTenant(load, quota, part)


SHORT, LONG = kernels(100 * US), kernels(5 * MS)
SCENARIOS: Mapping[str, Sequence[LoadedTenant]] = {
    "fixed 30, alone": (fixed(30, SHORT),),
    "burst 30, alone": (replace(burst(30, SHORT), part=100),),
    "fixed 30/70": (fixed(30, SHORT), fixed(70, SHORT)),
    "fixed 10/20/30/40, kernels of 20 us to 20 ms": (
        fixed(10, kernels(20 * US)),
        fixed(20, kernels(200 * US)),
        fixed(30, kernels(2 * MS)),
        fixed(40, kernels(20 * MS)),
    ),
    "weights 1/3": (weighted(1, 25, SHORT), weighted(3, 75, SHORT)),
    "burst 30/70, graphs of 20 kernels": (
        burst(30, kernels(100 * US, "graphs", 20)),
        burst(70, kernels(100 * US, "graphs", 20)),
    ),
}
ONLINE = LoadedTenant(SHORT, {"policy": "best-effort", "class": "online"}, serves=True)
OFFLINE = {"policy": "best-effort", "class": "offline"}


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    with Shares.on(driver) as shares:
        for name, tenants in SCENARIOS.items():
            yield from _guarded(name, shares.compared(name, tenants))
        for length, load in (("100 us", SHORT), ("5 ms", LONG)):
            name = f"online beside offline kernels of {length}"
            yield from _guarded(name, shares.served(name, (ONLINE, LoadedTenant(load, OFFLINE))))


def training(driver: DriverPaths) -> Iterator[ReportRow]:
    """The same with a training loop of PyTorch."""
    torch_view.importable(environment(driver.env))
    with Shares.on(driver) as shares:
        tenants = (burst(30, "training"), burst(70, "training"))
        yield from shares.compared("burst 30/70, training", tenants)
        beside = (burst(30, "training"), burst(70, kernels(100 * US, "graphs", 20)))
        yield from shares.compared("burst 30/70, training beside graphs", beside)


def _guarded(name: str, rows: Iterator[ReportRow]) -> Iterator[ReportRow]:
    try:
        yield from rows
    except (NotMeasured, ProbeFailed, ValueError) as error:
        yield ReportRow(name, missing=str(error))


@dataclass
class Shares:
    """A driver, a daemon on it, and how fast this card does each load alone."""

    driver: DriverPaths
    stack: Stack
    rounds_per_ns: float
    alone: dict[str, float] = field(default_factory=dict)
    served_alone: list[int] = field(default_factory=list)
    listed: list[TenantStatus] = field(default_factory=list)  # the last tenants, after their work

    @classmethod
    @contextmanager
    def on(cls, driver: DriverPaths) -> Iterator[Shares]:
        with stack(driver) as made:
            yield cls(driver, made, calibrated(driver, MS)[0] / MS)

    def compared(self, name: str, tenants: Sequence[LoadedTenant]) -> Iterator[ReportRow]:
        """What `tenants` get of the card that keep it busy, native beside gated."""
        units = [self._unit_ns(tenant.load) for tenant in tenants]
        native, gated = (_run(self._answers(tenants, gate=gate), units) for gate in (False, True))
        yield ReportRow(f"{name}: split", _split(gated), "%", f"native {_split(native)}")
        for what, take in (("mean", statistics.fmean), ("max", max)):
            seen, bare = (take(_errors(run, tenants)) for run in (gated, native))
            row = f"{name}: error over 1 s, {what}"
            yield ReportRow(row, round(seen, 2), "points", f"native {bare:.2f}")
        note = f"native {100 * native.busy():.1f}; percent of what one alone gets done"
        yield ReportRow(f"{name}: all together", round(100 * gated.busy(), 1), "%", note)
        yield from self._accounts(name)

    def _accounts(self, name: str) -> Iterator[ReportRow]:
        """What gpushared made of it: ten seconds by its gates, beside the driver's samples."""
        used = [tenant["cards"][0]["compute"] for tenant in self.listed]
        charged = "/".join(f"{one['cores_used']['10s'] or 0:.1f}" for one in used)
        sampled = "/".join(f"{one['driver_utilization'] or 0:.1f}" for one in used)
        yield ReportRow(f"{name}: charged", charged, "%", f"by the driver {sampled}")
        warnings = [warning for tenant in self.listed for warning in tenant["warnings"]]
        yield ReportRow.claim(f"{name}: nobody is accused", not warnings, "; ".join(warnings))

    def served(self, name: str, tenants: Sequence[LoadedTenant]) -> Iterator[ReportRow]:
        """How long requests take beside work without end, native beside gated, and alone."""
        if not self.served_alone:
            (alone,) = self._answers(tenants[:1], gate=False)
            self.served_alone = alone["took_ns"]
        other = self._unit_ns(tenants[1].load)
        p99 = [percentile(self.served_alone, 99)]
        parts = []
        for gate in (False, True):
            online, offline = self._answers(tenants, gate=gate)
            p99.append(percentile(online["took_ns"], 99))
            parts.append(100 * _run([offline], [other]).busy())
        alone_ns, native_ns, gated_ns = p99
        ratios = f"{gated_ns / alone_ns:.2f} times alone; native {native_ns / alone_ns:.2f} times"
        yield ReportRow(f"{name}: p99", gated_ns, "ns", f"{ratios}; alone {alone_ns / MS:.2f} ms")
        yield ReportRow(f"{name}: offline gets", round(parts[1], 1), "%", f"native {parts[0]:.1f}")

    def _unit_ns(self, load: str) -> float:
        if load not in self.alone:
            (seen,) = self._answers((LoadedTenant(load),), gate=False, seconds=ALONE_SECONDS)
            self.alone[load] = unit_ns(seen["log"])
        return self.alone[load]

    def _answers(
        self, tenants: Sequence[LoadedTenant], *, gate: bool, seconds: float | None = None
    ) -> list[dict[str, Any]]:
        """Run `tenants` together, as gpushare's where `gate` says so; return what each says."""
        seconds = SECONDS if seconds is None else seconds
        with ExitStack() as exit_:
            made = [
                exit_.enter_context(self._child(f"tenant-{at}", each, gate=gate))
                for at, each in enumerate(tenants)
            ]
            for process, tenant in zip(made, tenants, strict=True):
                process.start()
                process.ask(f"load {self._words(tenant.load)}")
            begin = time.monotonic_ns() + START_NS
            for process, tenant in zip(made, tenants, strict=True):
                more = f" {RATE} {BATCHES}" if tenant.serves else ""
                process.tell(f"{_verb(tenant)} {begin} {seconds}{more}")
            answers = [
                process.receive(_verb(tenant))
                for process, tenant in zip(made, tenants, strict=True)
            ]
            if gate:
                rows = self.stack.client.tenants()
                self.listed = sorted(rows, key=operator.itemgetter("name"))
        return [{**answer, "begin_ns": begin} for answer in answers]

    def _child(self, name: str, tenant: LoadedTenant, *, gate: bool) -> Child:
        if not gate:
            argv = child("tenant", str(self.driver.cuda))
            return Child(name, argv, environment(self.driver.env))
        memory_mib = min(MEMORY_MIB, self.driver.total_bytes // 8 >> 20)
        asked = {"memory": f"{memory_mib}MiB", **tenant.quota}
        options = [word for key, value in asked.items() for word in (f"--{key}", value)]
        argv = [
            *self.stack.cli,
            "run",
            "--name",
            name,
            *options,
            "--",
            *child("tenant", "libcuda.so.1"),
        ]
        return Child(name, argv, environment(self.driver.env, self.stack.env))

    def _words(self, load: str) -> str:
        words = load.split()
        if "{rounds}" in words:
            at = words.index("{rounds}")
            words[at] = str(max(1, round(int(words[at - 1]) * self.rounds_per_ns)))
        return " ".join(words)


def _verb(tenant: LoadedTenant) -> str:
    return "serve" if tenant.serves else "work"


def unit_ns(alone: Entries) -> float:
    """Return the card time of one unit, by a log of exclusive use; ValueError."""
    if len(alone) < 2:
        raise ValueError(f"{len(alone)} batches were done: too few to tell how fast it is")
    (first, before), (last, after) = alone[0], alone[-1]
    return (last - first) / (after - before)


def _run(answers: Sequence[Mapping[str, Any]], units: Sequence[float]) -> Run:
    """Fit the logs of tenants together, by their numbers; `units` is each one's unit_ns."""
    begin = answers[0]["begin_ns"]
    served = {
        str(at): Served([when for when, _ in each["log"]], [done * unit for _, done in each["log"]])
        for at, (each, unit) in enumerate(zip(answers, units, strict=True))
    }
    return Run(begin + SETTLED_NS, begin + SECONDS * 1e9, 1, served)


def _split(run: Run) -> str:
    return "/".join(f"{100 * run.share(name):.1f}" for name in run.served)


def _errors(run: Run, tenants: Sequence[LoadedTenant]) -> list[float]:
    """Return how far each second of each tenant was from what it must get, in points."""
    within = windows(run.start, run.end, SECOND_NS)
    return [
        error
        for name, tenant in zip(run.served, tenants, strict=True)
        if tenant.part is not None
        for error in errors(run.served[name], tenant.part / 100, within)
    ]
