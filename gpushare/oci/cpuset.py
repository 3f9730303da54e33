# SPDX-License-Identifier: Apache-2.0
"""The CPUs and memory nodes that a container may use: pure functions.

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
    """CPUs and memory nodes, by number."""

    cpus: frozenset[int] = frozenset()
    mems: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Bound:
    """The values to write into a spec (empty: no change), and notes for its user."""

    cpus: str = ""
    mems: str = ""
    notes: tuple[str, ...] = ()


def bind(spec: Spec, nodes: Cpuset, allowed: Cpuset) -> Bound:
    """Return the part on `nodes` of what `spec` allows, or else of `allowed`; never more.

    If nothing is left, the result is a note, and the spec stays as it is.
    """
    cpus, without_cpus = _narrowed(spec, CPUS, nodes.cpus, allowed.cpus)
    mems, without_mems = _narrowed(spec, MEMS, nodes.mems, allowed.mems)
    return Bound(cpus, mems, (*without_cpus, *without_mems))


def _narrowed(
    spec: Spec, path: tuple[str, ...], nodes: frozenset[int], allowed: frozenset[int]
) -> tuple[str, tuple[str, ...]]:
    what = "CPUs" if path == CPUS else "memory nodes"
    text = spec.at(*path)
    try:
        available = parse(text) if isinstance(text, str) and text.strip() else allowed
    except ValueError:
        return "", (
            f"numa: bind: {'.'.join(path)} {text!r:.64} is not a list of {what}: left unchanged",
        )
    left = available & nodes
    if not left:
        has = f"it may have {what} {shown(available)}" if available else f"it has no {what}"
        cards = f"its cards are on {shown(nodes) or 'none'}"
        return "", (f"numa: bind: {has}, but {cards}: left unchanged",)
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
