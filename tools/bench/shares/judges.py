# SPDX-License-Identifier: Apache-2.0
"""The figures of a scenario, and what they are held against."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Final

from gpushare.simulator.device_file import load_profile
from tools.bench.result import Result, percentile
from tools.model.bound import SynchronisingClient, bound

from .card_time import errors, windows
from .load import mean_us
from .scenario import Judge, Run, ScenarioRuns, shared

WINDOW_NS: Final = 1e9  # of card time


def share_errors(*, mean: float | None = None, most: float | None = None) -> Judge:
    """Judge how far shares over 1 s are from what was asked: the tenant that has it worst."""

    def judge(measured: ScenarioRuns) -> list[Result]:
        def found(run: Run) -> list[list[float]]:
            within = windows(run.start, run.end, WINDOW_NS * run.slow)
            return [
                errors(run.served[tenant.name], tenant.cores / 100, within)
                for tenant in shared(measured.scenario)
            ]

        return _mean_and_max(measured, "error over 1 s", found, mean, most)

    return judge


def ratio_errors(*, mean: float, most: float) -> Judge:
    """Judge how far each tenant is over 1 s from its part of what all of them used."""

    def judge(measured: ScenarioRuns) -> list[Result]:
        tenants = shared(measured.scenario)
        cores = sum(tenant.cores for tenant in tenants)

        def found(run: Run) -> list[list[float]]:
            within = windows(run.start, run.end, WINDOW_NS * run.slow)
            used = [[run.served[t.name].share(*each) for each in within] for t in tenants]
            sums = [sum(each) for each in zip(*used, strict=True)]
            return [
                [
                    100 * abs(got - total * tenant.cores / cores)
                    for got, total in zip(each, sums, strict=True)
                ]
                for tenant, each in zip(tenants, used, strict=True)
            ]

        return _mean_and_max(measured, "error of the ratio", found, mean, most)

    return judge


def _mean_and_max(
    measured: ScenarioRuns,
    what: str,
    found: Callable[[Run], list[list[float]]],
    mean: float | None,
    most: float | None,
) -> list[Result]:
    """Return both figures of the tenant that has the largest."""
    return [
        measured.result(
            f"{what}, mean", "points", lambda run: max(map(fmean, found(run))), limit=mean
        ),
        measured.result(
            f"{what}, max", "points", lambda run: max(map(max, found(run))), limit=most
        ),
    ]


def of_native(*, least: float | None = None) -> Judge:
    """Judge how busy the card was, by what the same clients make of it on the bare driver."""
    return lambda measured: [
        measured.result(
            "busy, relative to native",
            "%",
            lambda run: run.busy() / measured.native.busy() * 100,
            limit=least,
            at_least=True,
        )
    ]


def of_bound(*, least: float | None = None) -> Judge:
    """Judge how busy the card was by the most that any schedule reaches, of tenants alike."""

    def judge(measured: ScenarioRuns) -> list[Result]:
        scenario = measured.scenario
        assert measured.alone is not None
        alone = measured.alone.share(scenario.alone)
        clients = [
            SynchronisingClient.seen(
                each.cores, mean_us(each.load), each.load.kernels or 1, alone=alone
            )
            for each in scenario.tenants
        ]
        most = bound(clients, load_profile(scenario.profile)["switch_drained_ns"] / 1000)
        name = f"busy, relative to the bound ({100 * most:.1f} %; one alone {100 * alone:.1f} %)"
        return [
            measured.result(
                name, "%", lambda run: run.busy() / most * 100, limit=least, at_least=True
            )
        ]

    return judge


def parts(measured: ScenarioRuns) -> list[Result]:
    """Return each tenant's part of the card over the whole run."""
    return [
        measured.result(
            f"{tenant.name} ({tenant.cores} %) used",
            "%",
            lambda run, name=tenant.name: run.share(name) * 100,  # type: ignore[misc]
        )
        for tenant in measured.scenario.tenants
    ]


def aggregate(*, least: float) -> Judge:
    """Judge the card time of all together by that of one alone."""

    def judge(measured: ScenarioRuns) -> list[Result]:
        assert measured.alone is not None
        alone = measured.alone.share(measured.scenario.alone)
        name, unit = "aggregate", "% of solo"
        return [
            measured.result(
                name, unit, lambda run: run.busy() / alone * 100, limit=least, at_least=True
            )
        ]

    return judge


def loss(*, most: float) -> Judge:
    """Judge what a tenant that has the card to itself loses, by the bare driver."""
    return lambda measured: [
        measured.result(
            "card time lost",
            "%",
            lambda run: (1 - run.busy() / measured.native.busy()) * 100,
            limit=most,
        )
    ]


def latency(tenant: str, *, times_alone: float) -> Judge:
    """Judge the latency of requests by what it is alone on the bare driver."""

    def judge(measured: ScenarioRuns) -> list[Result]:
        assert measured.alone is not None
        alone = percentile(measured.alone.latencies_ms[tenant], 99)
        name = f"{tenant}: p99 by that alone ({alone:.2f} ms)"
        return [
            measured.result(
                name,
                "times",
                lambda run: percentile(run.latencies_ms[tenant], 99) / alone,
                limit=times_alone,
            )
        ]

    return judge


def reclaim(tenant: str, *, most_ms: float) -> Judge:
    """Judge how long the first kernel takes after an idle phase, while others use the card."""
    name = f"{tenant}: first kernel after idling, max"
    return lambda measured: [
        measured.result(name, "ms", lambda run: max(run.resumed_ms[tenant]), limit=most_ms)
    ]


def scheduler_cpu(*, most: float) -> Judge:
    """Judge the scheduler's own use of a core; in slow motion it would have less to do."""
    name, unit = "the scheduler's own time", "% of a core"
    return lambda measured: [
        measured.result(
            name, unit, lambda run: run.scheduler_cpu * 100, limit=most, beside_native=False
        )
    ]
