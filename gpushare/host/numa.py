# SPDX-License-Identifier: Apache-2.0
"""This machine's NUMA nodes, and the CPUs and memory nodes that a container may use.

Lists of them are as cpuset(7) has them, under "List format": `0-3,8`. In a spec they are
`linux.resources.cpu.cpus` and `.mems` (OCI runtime-spec, config-linux.md, "CPU").

Sources: Linux, Documentation/ABI/stable/sysfs-devices-node, sysfs-bus-pci (numa_node),
admin-guide/cgroup-v2.rst and cgroup-v1/cpusets.rst (effective CPUs).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from gpushare.oci.edits import CPUS, MEMS
from gpushare.oci.spec import Spec

_MOST: Final = 8192  # CONFIG_NR_CPUS of x86-64 at most
NO_NODE: Final = -1
_FILES: Final = {
    "cgroup": (
        ("cpuset.effective_cpus", "cpuset.effective_mems"),
        ("cpuset.cpus", "cpuset.mems"),
    ),
    "cgroup2": (("cpuset.cpus.effective", "cpuset.mems.effective"),),
}


@dataclass(frozen=True)
class Numa:
    """The nodes according to `sys` and `proc`; unreadable files count as missing."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")

    def node_of(self, address: str) -> int:
        """Return the node of a PCI address, `0000:18:00.0`; NO_NODE if the kernel has none."""
        try:
            return int(_text(self.sys / "bus/pci/devices" / address / "numa_node"))
        except ValueError:
            return NO_NODE

    def of(self, nodes: Iterable[int]) -> Cpuset:
        """Return the online CPUs of `nodes`, and those of the nodes that have memory."""
        wanted = frozenset(nodes)
        folder = self.sys / "devices/system/node"
        cpus = frozenset[int]().union(
            *(_list(folder / f"node{node}" / "cpulist") for node in wanted)
        )
        return Cpuset(cpus, wanted & _list(folder / "has_memory"))

    def allowed(self, cgroups_path: str) -> Cpuset:
        """Return the CPUs and nodes of a container with `linux.cgroupsPath` and no cpuset.

        They are those of its nearest existing parent group, or otherwise of this process.
        """
        for root, kind in self._hierarchies():
            for group in _above(root, cgroups_path):
                for cpus, mems in _FILES[kind]:
                    cpuset = Cpuset(_list(group / cpus), _list(group / mems))
                    if cpuset.cpus:
                        return cpuset
        status = dict(
            line.split(":", 1)
            for line in _text(self.proc / "self/status").splitlines()
            if ":" in line
        )
        return Cpuset(
            *(_numbers(status.get(name, "")) for name in ("Cpus_allowed_list", "Mems_allowed_list"))
        )

    def _hierarchies(self) -> Iterator[tuple[Path, str]]:
        """Yield the mount points of hierarchies with cpusets, and the type of each file system."""
        for line in _text(self.proc / "self/mountinfo").splitlines():
            before, _, after = line.partition(" - ")
            fields, rest = before.split(), after.split()
            if len(rest) < 3 or rest[0] not in _FILES or fields[3] != "/":
                continue
            if rest[0] == "cgroup2" or "cpuset" in rest[2].split(","):
                yield Path(fields[4]), rest[0]


def _above(root: Path, cgroups_path: str) -> Iterator[Path]:
    """Yield the parent groups of a container's group, the nearest first.

    `system.slice:docker:ID` is systemd's form: the name of a slice contains its parents
    (systemd.slice(5)).
    """
    slice_, colon, _ = cgroups_path.partition(":")
    if colon:
        parts = slice_.removesuffix(".slice").split("-") if slice_ not in {"", "-.slice"} else []
        group = PurePosixPath(
            *(f"{'-'.join(parts[: length + 1])}.slice" for length in range(len(parts))), "scope"
        )
    else:
        parts = [part for part in cgroups_path.split("/") if part not in {"", ".."}]
        group = PurePosixPath(*(parts or ["container"]))
    yield from (root / above for above in group.parents)


def _list(file: Path) -> frozenset[int]:
    return _numbers(_text(file))


def _numbers(text: str) -> frozenset[int]:
    try:
        return parse(text)
    except ValueError:
        return frozenset()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


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
    numbers: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.strip().partition("-")
        first, last = int(low), int(high or low)
        if not 0 <= first <= last < _MOST:
            raise ValueError(f"{part!r} is no range")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def shown(numbers: Iterable[int]) -> str:
    """Return numbers as a list: `0-3,8`; empty for none."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in ranges)
