# SPDX-License-Identifier: Apache-2.0
"""200 containers created at once: how long the slowest takes, and how long one waits for us."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from gpushare.install import install
from tests.stack import Stack
from tests.stack.crowd import Created, Crowd

from .native import compile_program
from .result import Result, percentile
from .turns import BenchError, Times, take

COUNT = 200
ROUNDS = 1  # of 200 each, after one more to warm up
CARDS = 16  # a card has 16 shares


def measure() -> Iterator[Result]:
    """Compare with as many under runc, from the same bundles."""
    with Stack(cards=CARDS) as stack:
        stack.start_daemon()
        crowd = Crowd(stack, COUNT, {"memory": "1GiB"})
        stamped = compile_program(
            "stamped.c", stack.root / "stamped", "-static", f'-DRUNTIME="{stack.runtime}"'
        )
        launcher = install(stack.root / "lib2", runtime=stamped, socket=stack.socket).launcher
        programs = {
            "runc": stack.runtime,
            "gpushare": launcher,
        }
        series = take(
            {name: partial(_all_at_once, stack, crowd, one) for name, one in programs.items()},
            ROUNDS,
        )
    name = f"{COUNT} created at once, the slowest"
    yield series.compare("slowest", "gpushare", "runc", name=name)
    waited = series.compare("waited", "gpushare", "runc", name="")
    slowest = series.compare("slowest", "runc", "runc", name="").baseline
    for percent in (50, 99):
        name = f"{COUNT} at once, wait for gpushared p{percent}"
        ours = series.compare(f"waited{percent}", "gpushare", "runc", name=name)
        took = series.compare(f"took{percent}", "runc", "runc", name="")
        yield Result(name, "ms", ours.value, took.value, ours.value - took.value)
    name = f"{COUNT} at once, longest wait for gpushared"
    # No container waits for us as long as the last of the crowd waits for runc.
    yield Result(name, "ms", waited.value, slowest, waited.value - slowest, slowest, absolute=True)


def _all_at_once(stack: Stack, crowd: Crowd, program: Path) -> Times:
    stamps = stack.root / "stamps"
    stamps.write_text("")
    try:
        done = crowd.create(str(program), stack.environment | {"STAMPS": str(stamps)})
    finally:
        crowd.remove()
    failed = [each.said.strip() for each in done if each.status != 0]
    if failed:
        raise BenchError(f"{len(failed)} of {COUNT} were not created: {failed[0]}")
    took = sorted(each.seconds * 1e3 for each in done)
    waits = _waits(done, stamps) or [0.0]
    return {
        "slowest": took[-1],
        "waited": waits[-1],
        **{f"took{percent}": percentile(took, percent) for percent in (50, 99)},
        **{f"waited{percent}": percentile(waits, percent) for percent in (50, 99)},
    }


def _waits(done: Sequence[Created], stamps: Path) -> list[float]:
    """Return the milliseconds between each create's begin and its runc's, the least first.

    runc is a child of the launcher, or the launcher has become it.
    """
    begun = {each.pid: each.begun for each in done}
    lines = (map(int, line.split()) for line in stamps.read_text().splitlines())
    return sorted(
        (at - (begun[pid] if pid in begun else begun[parent])) / 1e6 for pid, parent, at in lines
    )
