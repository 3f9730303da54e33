# SPDX-License-Identifier: Apache-2.0
"""The figures of a scenario, and what they are held against."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Final

from tools.bench.result import percentile

from .card_time import errors, windows
from .figure import Figure
from .scenario import Judge, Run, Scenario, ScenarioRuns, shared

WINDOW_NS: Final = 1e9  # of card time


def share_errors(*, mean: float | None = None, most: float | None = None) -> Judge:
    """Judge how far shares over 1 s are from what was asked: the tenant that has it worst."""

    def judge(measured: ScenarioRuns) -> list[Figure]:
        def worst(pick: Callable[[list[float]], float]) -> Callable[[Run], float]:
            return lambda run: max(
                pick(found) for found in _errors_of_tenants(measured.scenario, run)
            )

        return [
            measured.figure("error over 1 s, mean", "points", worst(fmean), limit=mean),
            measured.figure("error over 1 s, max", "points", worst(max), limit=most),
        ]

    return judge


def _errors_of_tenants(scenario: Scenario, run: Run) -> list[list[float]]:
    within = windows(run.start, run.end, WINDOW_NS * run.slow)
    return [
        errors(run.served[tenant.name, card], tenant.cores / 100, within)
        for tenant in shared(scenario)
        for card in tenant.cards
    ]


def ratio_errors(*, mean: float, most: float) -> Judge:
    """Judge how far each tenant is over 1 s from its part of what all of them used."""

    def judge(measured: ScenarioRuns) -> list[Figure]:
        tenants = shared(measured.scenario)
        cores = sum(tenant.cores for tenant in tenants)

        def found(run: Run) -> list[list[float]]:
            within = windows(run.start, run.end, WINDOW_NS * run.slow)
            used = [[run.served[t.name, 0].share(*each) for each in within] for t in tenants]
            sums = [sum(each) for each in zip(*used, strict=True)]
            return [
                [
                    100 * abs(got - total * tenant.cores / cores)
                    for got, total in zip(each, sums, strict=True)
                ]
                for tenant, each in zip(tenants, used, strict=True)
            ]

        def worst(pick: Callable[[list[float]], float]) -> Callable[[Run], float]:
            return lambda run: max(pick(each) for each in found(run))

        return [
            measured.figure("error of the ratio, mean", "points", worst(fmean), limit=mean),
            measured.figure("error of the ratio, max", "points", worst(max), limit=most),
        ]

    return judge


def of_native(*, least: float) -> Judge:
    """Judge how busy the card was, by what the same clients make of it on the bare driver."""
    return lambda measured: [
        measured.figure(
            "busy, relative to native",
            "%",
            lambda run: run.busy() / measured.native.busy() * 100,
            limit=least,
            at_least=True,
        )
    ]


def work_of_share(tenant: str, *, least: float) -> Judge:
    """Judge the work that a tenant gets done in its share, by the bare driver's for that time.

    Natively, processes that switch among themselves get as much of the card done as all do there.
    """

    def part(measured: ScenarioRuns, run: Run) -> float:
        share = measured.scenario.tenant(tenant).cores / 100 * measured.native.busy()
        return run.share(tenant) / share * 100

    return lambda measured: [
        measured.figure(
            f"{tenant}: work, by its share of native",
            "%",
            lambda run: part(measured, run),
            limit=least,
            at_least=True,
            beside_native=False,
        )
    ]


def parts(measured: ScenarioRuns) -> list[Figure]:
    """Return each tenant's part of the card over the whole run."""
    return [
        measured.figure(
            f"{tenant.name} ({tenant.cores} %) used" + (f" of card {card}" if card else ""),
            "%",
            lambda run, name=tenant.name, card=card: run.share(name, card) * 100,  # type: ignore[misc]
        )
        for tenant in measured.scenario.tenants
        for card in tenant.cards
    ]


def aggregate(*, least: float | None = None) -> Judge:
    """Judge the card time of all together by that of one alone, and by the bare driver's."""

    def judge(measured: ScenarioRuns) -> list[Figure]:
        assert measured.alone is not None
        alone = measured.alone.share(measured.scenario.alone)

        def of_solo(run: Run) -> float:
            return run.busy() / alone * 100

        figure = measured.figure("aggregate", "% of solo", of_solo, limit=least, at_least=True)
        native = measured.native.busy() / alone * 100
        beside = measured.figure(
            "aggregate above native's",
            "points",
            lambda run: of_solo(run) - native,
            limit=0,
            at_least=True,
            beside_native=False,
        )
        return [figure, beside]

    return judge


def loss(*, most: float) -> Judge:
    """Judge what a tenant that has the card to itself loses, by the bare driver."""
    return lambda measured: [
        measured.figure(
            "card time lost",
            "%",
            lambda run: (1 - run.busy() / measured.native.busy()) * 100,
            limit=most,
        )
    ]


def latency(tenant: str, *, times_alone: float | None = None) -> Judge:
    """Judge the latency of requests by what it is alone on the bare driver."""

    def judge(measured: ScenarioRuns) -> list[Figure]:
        assert measured.alone is not None
        found = [
            measured.figure(
                f"{tenant}: p{percent} of requests",
                "ms",
                lambda run, percent=percent: percentile(run.latencies_ms[tenant], percent),  # type: ignore[misc]
            )
            for percent in (50, 99)
        ]
        alone = percentile(measured.alone.latencies_ms[tenant], 99)
        return [
            *found,
            measured.figure(
                f"{tenant}: p99 by that alone ({alone:.2f} ms)",
                "times",
                lambda run: percentile(run.latencies_ms[tenant], 99) / alone,
                limit=times_alone,
            ),
        ]

    return judge


def reclaim(tenant: str, *, most_ms: float) -> Judge:
    """Judge how long the first kernel takes after an idle phase, while others use the card."""
    name = f"{tenant}: first kernel after idling"
    return lambda measured: [
        measured.figure(f"{name}, p50", "ms", lambda run: percentile(run.resumed_ms[tenant], 50)),
        measured.figure(
            f"{name}, max", "ms", lambda run: max(run.resumed_ms[tenant]), limit=most_ms
        ),
    ]


def scheduler_cpu(*, most: float) -> Judge:
    """Judge the scheduler's own use of a core; in slow motion it would have less to do."""
    name, unit = "the scheduler's own time", "% of a core"
    return lambda measured: [
        measured.figure(
            name, unit, lambda run: run.scheduler_cpu * 100, limit=most, beside_native=False
        )
    ]
