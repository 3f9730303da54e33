# SPDX-License-Identifier: Apache-2.0
"""The figures as a page of docs/measurements, with the machine that they are of."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Final

from .figure import Figure

_HEAD: Final = """\
# Shares of compute, on simulated cards

Written by `./dev bench shares --page FILE`; [compute shares](../explanation/compute-shares.md)
says how a share is held. Each row is a scenario: tenants that share a simulated H200 (slices of 2
ms, 0.16 ms for a switch away from work, 0.03 ms from a context that has none), with gpushare and,
at the same time on another such machine, on the bare driver (*native*). What each tenant had is
told by the simulator itself. An error is how far a tenant's share of one second is from what it
asked for, in points of the card, over all windows of a second, each a quarter of one later, for
the tenant that is worst off. *Solo* is one of the tenants with the card to itself, natively.

In slow motion everything takes so many times as long, on the card and in the scheduler: a machine
with few cores wakes a process late now and then, which has nothing to do with a card. All times
are the card's. By how much this machine was late is said beside each row.
"""


@dataclass(frozen=True)
class Host:
    """What was measured on."""

    processor: str
    cores: int
    kernel: str
    load: float  # before it began
    began: datetime

    @classmethod
    def this(cls) -> Host:
        """Return this machine, now."""
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return cls(
            processor=found[1] if found else platform.machine(),
            cores=os.cpu_count() or 1,
            kernel=platform.release(),
            load=os.getloadavg()[0],
            began=datetime.now(timezone.utc),
        )

    def __str__(self) -> str:
        began = f"{self.began:%Y-%m-%d %H:%M} UTC"
        machine = f"{self.cores} cores ({self.processor}), Linux {self.kernel}"
        return f"{began}, {machine}, load {self.load:.1f} before it began."


def page(figures: Sequence[Figure], host: Host) -> str:
    """Return the page."""
    judged = [figure for figure in figures if figure.met is not None]
    missed = [figure for figure in judged if not figure.met]
    lines = [_HEAD, str(host), "", f"{len(judged) - len(missed)} of {len(judged)} targets are met."]
    if missed:
        lines[-1] += " Missed:"
        lines += ["", *(f"- {each.name}: {each.value:.2f}, not {each.target}" for each in missed)]
    for title, group in groupby(figures, key=lambda figure: (figure.row, figure.title)):
        lines += ["", f"## {title[0]}", "", f"{title[1][0].upper()}{title[1][1:]}.", ""]
        lines += ["| | native | gpushare | target | |", "|---|---|---|---|---|"]
        lines += [_row(figure) for figure in group]
    return "\n".join(lines) + "\n"


def _row(figure: Figure) -> str:
    native = "" if figure.native is None else f"{figure.native:.2f}"
    verdict = {None: "", True: "met", False: "**missed**"}[figure.met]
    value = f"{figure.value:.2f} {figure.unit}"
    return f"| {figure.what} | {native} | {value} | {figure.target} | {verdict} |"
