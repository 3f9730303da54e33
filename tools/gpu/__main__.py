# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.gpu [WHAT...]`: measure this machine's card, write docs/measurements/.

Exit status: 0 every claim held (rows that could not be measured say why and count for nothing),
1 a claim did not hold, 2 a wrong command line, 77 no NVIDIA driver here.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import gpushare

from . import (
    applications,
    containers,
    contract,
    copies,
    costs,
    coverage,
    evictions,
    filtered,
    machine,
    mps,
    nodes,
    shares,
    smi,
    symbols,
    torch_view,
    waits,
)
from .driver import DriverPaths, NoWorkingDriver, find
from .report import GpuReport, NotMeasured, ReportRow, default_path

NO_DRIVER = 77
CLEAR_UP_SECONDS = 10

Measurement = Callable[[DriverPaths], Iterable[ReportRow]]


class Part(NamedTuple):
    """One section of the report."""

    title: str
    rows: Measurement


#: In the order of what they decide: a machine may be lent for a quarter of an hour.
PARTS: dict[str, Part] = {
    "machine": Part("The machine", machine.rows),
    "symbols": Part("The driver's symbols and look-ups", symbols.rows),
    "features": Part("What the driver can do", machine.features),
    "filters": Part("The filters over the driver", filtered.rows),
    "smi": Part("nvidia-smi as a tenant", smi.rows),
    "nodes": Part("What the libraries make in /dev", nodes.rows),
    "contract": Part("The contract of the driver", contract.rows),
    "tenant-contract": Part("The contract through the interposer library", contract.tenant),
    "coverage": Part("Every allocation path", coverage.rows),
    "torch": Part("PyTorch as a tenant", torch_view.rows),
    "host": Part("Two tenants by gpushare run", containers.host),
    "runc": Part("Two tenants in runc containers", containers.runc),
    "pytorch": Part("PyTorch by gpushare run", containers.pytorch),
    "evict": Part("Evictions and restores", evictions.rows),
    "waits": Part("Clients that wait for their kernels", waits.rows),
    "costs": Part("What a call costs", costs.rows),
    "copies": Part("What NVML counts of kernels and copies", copies.rows),
    "shares": Part("Shares of compute, without gpushare and with it", shares.rows),
    "training": Part("Shares of compute, training by PyTorch", shares.training),
    "mps": Part("MPS", mps.rows),
    "applications": Part("Applications of others", applications.rows),
}
PROBE = ("machine", "symbols", "features", "filters", "smi", "nodes", "tenant-contract")
GROUPS: dict[str, Sequence[str]] = {"probe": PROBE, "all": tuple(PARTS)}


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    try:
        driver = find(options.driver, options.cdi)
    except NoWorkingDriver as error:
        sys.stdout.write(f"gpu: no NVIDIA driver to measure: {error}\n")
        return NO_DRIVER
    report = GpuReport(_facts(driver, " ".join(options.what)), sys.stdout)
    path = options.out or default_path(report.facts)
    measure(driver, chosen(options.what), report, path, options.seconds)
    sys.stdout.write(f"\n{report.summary}; wrote {path.with_suffix('.md')}\n")
    return 1 if report.lost else 0


def chosen(words: Sequence[str]) -> list[str]:
    """Return the parts that `words` name, alone or by group, in their own order."""
    named = {part for word in words for part in GROUPS.get(word, (word,))}
    return [part for part in PARTS if part in named]


def measure(
    driver: DriverPaths, parts: Iterable[str], report: GpuReport, path: Path, seconds: float
) -> None:
    """Measure `parts`; after each the report is written, so that what ends us costs one part.

    What runs when `seconds` have passed, less what it takes to clear up, is cut short.
    """
    until = time.monotonic() + seconds - CLEAR_UP_SECONDS
    for title, rows in (PARTS[part] for part in parts):
        left = until - time.monotonic()
        why = f"{seconds:g} seconds had passed"
        if left > 0:
            try:
                with _cut_short(left):
                    report.measure(title, rows(driver))
                why = ""
            except NotMeasured as error:  # between two rows
                why = str(error)
        if why:
            report.measure(title, [ReportRow("all of this", missing=why)])
        report.write(path)


@contextmanager
def _cut_short(seconds: float) -> Iterator[None]:
    """Have what is measured raise NotMeasured after so many seconds."""

    def end(*_: object) -> None:
        raise NotMeasured(f"cut short after {seconds:.0f} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 0 if math.isinf(seconds) else seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _facts(driver: DriverPaths, what: str) -> dict[str, str]:
    return {
        "model": driver.model,
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "driver": driver.version,
        "CUDA": driver.cuda_version_text,
        "gpushare": gpushare.__version__,
        "measured by": f"python -m tools.gpu {what}",
    }


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev gpu", description="Measure this machine's card.")
    words = (*GROUPS, *PARTS)
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        default=["all"],
        help=f"probe: a first look, under a minute; all: all of it; or of {', '.join(PARTS)}",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="instead of docs/measurements/")
    parser.add_argument("--cdi", type=Path, metavar="FILE", help="a CDI spec of that driver")
    parser.add_argument(
        "--driver", type=Path, metavar="DIR", help="the folder of the driver's libraries"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        metavar="N",
        help="end by then: cut a section short, and say which are missing",
    )
    options = parser.parse_args(argv)
    for word in options.what:
        if word not in words:
            parser.error(f"argument WHAT: invalid choice: {word!r} (of {', '.join(words)})")
    return options


if __name__ == "__main__":
    sys.exit(main())
