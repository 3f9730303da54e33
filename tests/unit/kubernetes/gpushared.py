# SPDX-License-Identifier: Apache-2.0
"""gpushared as gpushare-node asks it, and a clock that a test moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpushare.client import Client, DaemonUnreachable, RequestRefused
from gpushare.quota.node_settings import NodeSetting
from tests.unit.kubernetes.made import STATUS, card

NOW = 1_780_000_000.0


@dataclass
class Clock:
    """Seconds of a clock that goes on when a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeGpushared(Client):
    """Reports cards, containers and a history, and takes settings; refuses, or is away."""

    rows: list[dict[str, Any]] = field(default_factory=lambda: [card(0), card(1)])
    containers: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    mode: str = "dra"
    is_away: bool = False
    refuses: bool = False
    accepts: bool = True
    requests: int = 0
    settings: dict[str, NodeSetting] = field(default_factory=dict)

    def _answer(self) -> None:
        if self.is_away:
            raise DaemonUnreachable("gpushared is not running: start it")

    def cards(self) -> Any:
        self._answer()
        return self.rows

    def status(self) -> Any:
        self._answer()
        settings = {"accepts_node_labels": self.accepts, "node_settings": dict(self.settings)}
        found = {"cards": len(self.rows), "warnings": self.warnings}
        found |= {"tenants": len(self.containers)}
        return {**STATUS, "kubernetes_mode": self.mode, **found, **settings}

    def set_node_setting(self, key: str, setting: NodeSetting | None) -> None:
        self.requests += 1
        self._answer()
        if self.refuses:
            raise RequestRefused("node label x=y: not allowed on this node. Write z.")
        if setting is None:
            del self.settings[key]
        else:
            self.settings[key] = setting

    def tenants(self, *, everything: bool = False) -> Any:
        assert everything
        self._answer()
        return self.containers

    def history(self, name: str = "", since: float = 0.0, after: int = 0) -> Iterator[Any]:
        assert not name
        yield from (one for one in self.events if one["number"] > after and one["time"] >= since)

    def happens(
        self, event: str, key: str = "k1", card: str = "", name: str = "", **fields: Any
    ) -> None:
        """Let the history have an event."""
        number = len(self.events) + 1
        identity = "c" * 64 if key else ""
        row = {"number": number, "time": NOW + number, "boot_id": "boot-1", "event": event}
        self.events.append(row | {"key": key, "id": identity, "name": name, "card": card})
        self.events[-1]["fields"] = fields
