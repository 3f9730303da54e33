# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.gpu probe|all`: measure this machine's card, write docs/measurements/.

Exit status: 0 every claim held (rows that could not be measured say why and count for nothing),
1 a claim did not hold, 2 a wrong command line, 77 no NVIDIA driver here.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import gpushare

from . import (
    containers,
    costs,
    filtered,
    machine,
    overhead,
    slices,
    smi,
    symbols,
    throughput,
    torch_view,
)
from .driver import Driver, NoDriver, find
from .report import Report, Row, default_path

NO_DRIVER = 77

Measurement = Callable[[Driver], Iterable[Row]]
PROBE: dict[str, Measurement] = {
    "The machine": machine.rows,
    "The driver's symbols and look-ups": symbols.rows,
    "What a context takes": overhead.rows,
    "The filters over the driver": filtered.rows,
    "PyTorch as a tenant": torch_view.rows,
    "nvidia-smi as a tenant": smi.rows,
    "Time slices": slices.rows,
    "Throughput of several contexts": throughput.rows,
    "Latencies that metering meets": throughput.latency,
    "What a call costs": costs.rows,
}
ALL: dict[str, Measurement] = {
    **PROBE,
    "Two tenants by gpushare run": containers.host,
    "Two tenants in runc containers": containers.runc,
    "PyTorch by gpushare run": containers.pytorch,
}


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    try:
        driver = find(options.driver, options.cdi)
    except NoDriver as error:
        sys.stdout.write(f"gpu: no NVIDIA driver to measure: {error}\n")
        return NO_DRIVER
    report = Report(_facts(driver, options.what), sys.stdout)
    chosen = PROBE if options.what == "probe" else ALL
    for title, measurement in chosen.items():
        report.measure(title, measurement(driver))
    path = options.out or default_path(report.facts)
    report.write(path)
    sys.stdout.write(f"\n{report.summary}; wrote {path.with_suffix('.md')}\n")
    return 1 if report.lost else 0


def _facts(driver: Driver, what: str) -> dict[str, str]:
    return {
        "model": driver.model,
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "driver": driver.version,
        "CUDA": driver.cuda_version_text,
        "gpushare": gpushare.__version__,
        "measured by": f"python -m tests.gpu {what}",
    }


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev gpu", description="Measure this machine's card.")
    parser.add_argument(
        "what",
        nargs="?",
        choices=("probe", "all"),
        default="all",
        help="probe: the libraries over the driver, under five minutes; all: tenants too",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="instead of docs/measurements/")
    parser.add_argument("--cdi", type=Path, metavar="FILE", help="a CDI spec of that driver")
    parser.add_argument(
        "--driver", type=Path, metavar="DIR", help="the folder of the driver's libraries"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
