# SPDX-License-Identifier: Apache-2.0
"""`./dev demo`: two containers share one GPU under quotas, on a private dockerd, in a minute.

The scenarios of memory and of an eviction are those of gpushare.verify. The compute scenario is
here and takes a few seconds. The stack is that of the system tests. With a driver, the card is
a real one, otherwise a simulated H200 in slow motion: on a busy machine, processes that are late by
a few ms then change little of the shares.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType

from gpushare.quota.size import exact_size
from gpushare.verify import (
    GIB,
    Report,
    ScenarioSteps,
)
from gpushare.verify.memory import EvictionScenario, MemoryScenario
from gpushare.verify.runners import Docker, ProbeTenant

from .brought import Brought
from .stack import Stack
from .stack.card import real_card
from .stack.program import Missing

TIME_SCALE = 4
CORES = {"train": 30, "serve": 70}
BAND = 5  # points
BUSY_SECONDS = 6
WARM_SECONDS = 1.5  # in which both have begun; `gpushare ps` looks a second back
LOOK_SECONDS = 2
TRIES = 3


class Compute(ScenarioSteps):
    """Two containers keep one card busy, and the usage of each is measured."""

    def run(self) -> bool:
        """Run the scenario; return whether all checks passed."""
        self.report.title("Both containers keep the card busy")
        with ExitStack() as stack:
            tenants = [
                self.started(stack, name, {"memory": exact_size(GIB), "cores": str(cores)})
                for name, cores in CORES.items()
            ]
            parts = self._parts(tenants)
            for _ in range(TRIES - 1):
                if all(abs(parts[name] - cores) <= BAND for name, cores in CORES.items()):
                    break
                parts = self._parts(tenants)  # something else had the processors
        for name, cores in CORES.items():
            self.report.check(
                f"{name} got {cores} % of the time of both, within {BAND} points",
                abs(parts[name] - cores) <= BAND,
                f"{parts[name]:.1f} %",
            )
        return self.report.passed

    def _parts(self, tenants: list[ProbeTenant]) -> dict[str, float]:
        """Return the usage of each tenant while all are busy, in percent of the sum."""
        for tenant in tenants:
            tenant.tell(f"busy 1000000 {BUSY_SECONDS * 1_000_000_000}")
        time.sleep(WARM_SECONDS)
        before = self._charged()
        time.sleep(LOOK_SECONDS)
        self.show("ps")
        after = self._charged()
        for tenant in tenants:
            tenant.answer("busy")
        had = {name: after[name] - before[name] for name in CORES}
        return {name: 100 * ns / (sum(had.values()) or 1) for name, ns in had.items()}

    def _charged(self) -> dict[str, int]:
        return {
            name: row["cards"][0]["compute"]["charged_ns"] for name, row in self.tenants().items()
        }


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    if os.geteuid() != 0:
        print("gpushare demo: requires root, because it starts its own dockerd: sudo ./dev demo")
        return 1
    signal.signal(signal.SIGTERM, _leave)
    report = Report(sys.stdout, colour=sys.stdout.isatty())
    try:
        held = _demonstrate(report, keep=options.keep)
    except Missing as error:
        print(f"gpushare demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ngpushare demo: stopped; everything was removed", file=sys.stderr)
        return 130
    return 0 if held else 1


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev demo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--keep", action="store_true", help="keep it running until Ctrl-C")
    return parser.parse_args(argv)


def _demonstrate(report: Report, *, keep: bool) -> bool:
    real = real_card()
    with Stack(cdi=real, time_scale=TIME_SCALE) as stack:
        report.title("gpushare: two containers share one GPU")
        report.say(
            "card      "
            + ("this machine's" if real else "a simulated H200 in slow motion (no driver here)")
        )
        report.say(f"private   dockerd, containerd and gpushared, all in {stack.root}")
        stack.start_containerd()
        docker = stack.start_docker()
        stack.start_daemon()
        docker.prepare(stack.installation.probe)
        _scenario(docker, stack, report).run()
        Compute(docker, stack.cli, report).run()
        EvictionScenario(docker, stack.cli, report).run()
        held = Brought(docker, stack.cli, report, folder=stack.root).run()
        report.title(report.summary)
        if keep:
            _wait_to_play(stack)
    return held


def _scenario(docker: Docker, stack: Stack, report: Report) -> MemoryScenario:
    return MemoryScenario(docker, stack.cli, report)


def _wait_to_play(stack: Stack) -> None:
    exports = [f"  export {name}={shlex.quote(value)}" for name, value in stack.env.items()]
    words = [
        "\nThe demo keeps running. In another shell, as root:\n",
        *exports,
        f"  export PATH={Path(sys.executable).parent}:$PATH",
        "  docker run --rm -it --network none --runtime=gpushare -e GPUSHARE_MEMORY=4GiB \\",
        "      --name mine gpushare-probe          # then type: info, fill, free, spin 1000000 100",
        "  gpushare ps; gpushare why mine; gpushare set mine --memory 6GiB",
        "\nCtrl-C here stops and removes it.",
    ]
    with suppress(KeyboardInterrupt):
        print("\n".join(words), flush=True)
        signal.pause()


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
