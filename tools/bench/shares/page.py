# SPDX-License-Identifier: Apache-2.0
"""The figures as a page of docs/measurements, with the machine that produced them."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Final

from .figure import Figure

_HEAD: Final = """\
# Compute shares on simulated cards

Written by `./dev bench shares --page FILE`. [Compute shares](../explanation/compute-shares.md)
explains how a share is enforced. Each row is a scenario: tenants share a simulated H200 (slices of
2 ms, 0.16 ms for a switch away from work, 0.03 ms from an idle context) with gpushare and, at the
same time on another such machine, on the bare driver (*native*). The simulator itself reports the
use of each tenant. An error is the difference between a tenant's use within one second and its
share, in percentage points of the card, over all windows of one second at intervals of a quarter,
for the tenant with the largest error. *Solo* is one of the tenants alone on the card, natively.

With a time scale, all durations are multiplied, on the card and in the scheduler, because a machine
with few cores sometimes wakes a process late, independently of the card. All times are those of the
card. Each row states by how much this machine was late.
"""


def host() -> str:
    """Return what this machine is, and how busy before the start."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    began = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
    processor = f"{os.cpu_count() or 1} cores ({found[1] if found else platform.machine()})"
    load = f"load {os.getloadavg()[0]:.1f} before the start"
    return f"{began}, {processor}, Linux {platform.release()}, {load}."


def page(figures: Sequence[Figure], host: str) -> str:
    """Return the page."""
    judged = [figure for figure in figures if figure.met is not None]
    missed = [figure for figure in judged if not figure.met]
    lines = [_HEAD, host, "", f"{len(judged) - len(missed)} of {len(judged)} targets are met."]
    if missed:
        lines[-1] += " Missed:"
        lines += ["", *(f"- {each.name}: {each.value:.2f}, not {each.target}" for each in missed)]
    return "\n".join(lines) + f"\n{tables(figures)}\n"


def tables(figures: Sequence[Figure]) -> str:
    """Return the figures, a table for each scenario."""
    lines = []
    for (row, title), group in groupby(figures, key=lambda figure: (figure.row, figure.title)):
        lines += ["", f"## {row}", "", f"{title[0].upper()}{title[1:]}.", ""]
        lines += ["| | native | gpushare | target | |", "|---|---|---|---|---|"]
        lines += [_row(figure) for figure in group]
    return "\n".join(lines)


def _row(figure: Figure) -> str:
    native = "" if figure.native is None else f"{figure.native:.2f}"
    verdict = {None: "", True: "met", False: "**missed**"}[figure.met]
    value = f"{figure.value:.2f} {figure.unit}"
    return f"| {figure.what} | {native} | {value} | {figure.target} | {verdict} |"
