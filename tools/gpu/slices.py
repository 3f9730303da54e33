# SPDX-License-Identifier: Apache-2.0
"""Time slices: how long a context keeps the card while another waits, and what a switch costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median

from gpushare.verify.runners import ProbeFailed

from .driver import DriverPaths
from .process import Child, child, environment
from .report import NotMeasured, ReportRow
from .timeline import Log, Sharing, sharing, spread

DURATION_NS = 400_000_000  # under the two seconds after which a card with a display stops a kernel
GAP_NS = 10_000  # shorter pauses are the memory's and the clock's, not another context's


@contextmanager
def workers(driver: DriverPaths, count: int) -> Iterator[Sequence[Child]]:
    """Run `count` processes of child/kernels.py, each with a context on the card."""
    argv = child("kernels", str(driver.cuda))
    with ExitStack() as stack:
        made = [
            stack.enter_context(Child(f"worker {number}", argv, environment(driver.env)))
            for number in range(count)
        ]
        try:
            for worker in made:
                worker.start()
                worker.ask("context")
        except ProbeFailed as error:
            raise NotMeasured(str(error)) from error
        yield made


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    for whole, what in ((False, "one thread each"), (True, "every multiprocessor in use")):
        yield from _shared(driver, 2, whole, what)
    yield from _shared(driver, 3, True, "every multiprocessor in use")


def _shared(driver: DriverPaths, count: int, whole: bool, what: str) -> Iterator[ReportRow]:
    name = f"{count} contexts, {what}"
    command = f"trace {DURATION_NS} {GAP_NS} {int(whole)}"
    try:
        with workers(driver, count) as made:
            for worker in made:
                worker.ask(f"trace 1000000 {GAP_NS} {int(whole)}")  # compiled and loaded
            for worker in made:
                worker.tell(command)
            answers = [worker.receive(command) for worker in made]
        seen = sharing([Log.of(answer) for answer in answers])
    except (ValueError, NotMeasured, ProbeFailed) as error:
        yield ReportRow(name, missing=str(error))
        return
    steps = min(answer["least_step_ns"] for answer in answers)
    yield from described(name, seen, f"the card's clock steps by {steps} ns")


def described(name: str, seen: Sharing, clock: str) -> Iterator[ReportRow]:
    if not seen.slices_ns or not seen.switches_ns:
        share = seen.overlap_ns / seen.together_ns
        why = f"no switch in {seen.together_ns / 1e6:.0f} ms together"
        yield ReportRow(f"{name}: slice", missing=f"{why}, {share:.0%} of it at once")
        return
    slice_ns, switch_ns = median(seen.slices_ns), median(seen.switches_ns)
    yield ReportRow(f"{name}: slice", slice_ns, "ns", spread(seen.slices_ns))
    yield ReportRow(f"{name}: switch", switch_ns, "ns", f"{spread(seen.switches_ns)}; {clock}")
    yield ReportRow(f"{name}: lost to switches", 100 * switch_ns / (slice_ns + switch_ns), "%")
    shares = ", ".join(f"{100 * share:.1f}" for share in seen.shares)
    yield ReportRow(f"{name}: shares", shares, note="percent of the time together, by context")
