# SPDX-License-Identifier: Apache-2.0
"""Which CPUs and which NUMA nodes' memory a container may have: pure.

As cpuset(7) has them, under "List format": `0-3,8`. In a spec they are `linux.resources.cpu.cpus`
and `.mems` (OCI runtime-spec, config-linux.md, "CPU").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpushare.oci.spec import Spec

CPUS: Final = ("linux", "resources", "cpu", "cpus")
MEMS: Final = ("linux", "resources", "cpu", "mems")
_MOST: Final = 8192  # CONFIG_NR_CPUS of x86-64 at most


@dataclass(frozen=True)
class Cpuset:
    """CPUs, and the nodes whose memory there may be, by number."""

    cpus: frozenset[int] = frozenset()
    mems: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Bound:
    """What to write into a spec (empty: leave what is there), and what its user should know."""

    cpus: str = ""
    mems: str = ""
    notes: tuple[str, ...] = ()


def bind(spec: Spec, nodes: Cpuset, allowed: Cpuset) -> Bound:
    """Return what is left of what `spec` has, or else of `allowed`, on `nodes`; never more.

    Where nothing is left there is a note, and the container has what it had.
    """
    cpus, without_cpus = _narrowed(spec, CPUS, nodes.cpus, allowed.cpus)
    mems, without_mems = _narrowed(spec, MEMS, nodes.mems, allowed.mems)
    return Bound(cpus, mems, (*without_cpus, *without_mems))


def _narrowed(
    spec: Spec, path: tuple[str, ...], near: frozenset[int], allowed: frozenset[int]
) -> tuple[str, tuple[str, ...]]:
    what = "CPUs" if path == CPUS else "memory nodes"
    said = spec.at(*path)
    try:
        given = parse(said) if isinstance(said, str) and said.strip() else allowed
    except ValueError:
        return "", (f"numa: bind: {'.'.join(path)} {said!r:.64} is no list of {what}: left as is",)
    left = given & near
    if not left:
        has = f"it may have {what} {shown(given)}" if given else f"it has no {what}"
        near_to = f"its cards are near to {shown(near) or 'none'}"
        return "", (f"numa: bind: {has}, and {near_to}: left as is",)
    return shown(left), ()


def parse(text: str) -> frozenset[int]:
    """Return the numbers of a list; ValueError where it is none."""
    found: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.strip().partition("-")
        first, last = int(low), int(high or low)
        if not 0 <= first <= last < _MOST:
            raise ValueError(f"{part!r} is no range")
        found.update(range(first, last + 1))
    return frozenset(found)


def shown(numbers: Iterable[int]) -> str:
    """Return numbers as a list: `0-3,8`; empty for none."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in ranges)
