# SPDX-License-Identifier: Apache-2.0
"""Whose a process is: its cgroup says, or its ancestors where the tenant has none of its own."""

from __future__ import annotations

from collections.abc import Mapping

from gpushare.daemon.identity import processes
from gpushare.daemon.store.ledger import Entry


class Owners:
    """Which tenant a process belongs to, for one look."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        bound = [entry for entry in entries.values() if entry.state == "bound"]
        self._by_cgroup = {entry.cgroup: entry.key for entry in bound if entry.cgroup}
        self._hierarchies = {cgroup.partition(":")[0] for cgroup in self._by_cgroup}
        self._by_pid = {entry.pid: entry.key for entry in bound}

    def of(self, pid: int) -> str | None:
        """Return the tenant that process `pid` belongs to; None: none, or it cannot be told."""
        keys = self.all_of(pid)
        return next(iter(keys)) if len(keys) == 1 else None

    def all_of(self, pid: int) -> frozenset[str]:
        """Return the tenants whose cgroups process `pid` is in: more than one is nobody's word."""
        paths = processes.cgroups_of(pid)
        found = {self._in(hierarchy, paths[hierarchy]) for hierarchy in self._known(paths)} - {""}
        if not found:
            key = self._by_ancestor(pid)
            found = set() if key is None else {key}
        return frozenset(found)

    def _known(self, paths: Mapping[str, str]) -> set[str]:
        return self._hierarchies & paths.keys()

    def _in(self, hierarchy: str, path: str) -> str:
        """Return the tenant of the nearest cgroup around `path`; empty where there is none."""
        while path not in {"", "/"}:
            key = self._by_cgroup.get(f"{hierarchy}:{path}")
            if key is not None:
                return key
            path = path.rpartition("/")[0]
        return ""

    def _by_ancestor(self, pid: int) -> str | None:
        for _ in range(64):
            if pid in self._by_pid:
                return self._by_pid[pid]
            process = processes.look(pid)
            if process is None or process.parent <= 1:
                return None
            pid = process.parent
        return None
