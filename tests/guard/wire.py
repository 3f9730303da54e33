# SPDX-License-Identifier: Apache-2.0
"""What is sent to gpushared: the operations of its control socket, by the names they have today."""

from __future__ import annotations

import array
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_SECONDS: Final = 60.0
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class ControlSocket:
    """gpushared behind one control socket; each call returns its last reply, with its rows."""

    path: Path

    def create(self, identity: str, bundle: str, marker: str, fds: Sequence[int]) -> dict[str, Any]:
        fields = {"id": identity, "bundle": bundle, "verb": "create", "marker": marker}
        return self.ask("create", fields, fds)

    def bind(self, key: str, identity: str, pid: int) -> dict[str, Any]:
        return self.ask("bind", {"key": key, "id": identity, "pid": pid})

    def release(self, key: str, identity: str) -> dict[str, Any]:
        return self.ask("release", {"key": key, "id": identity})

    def open(
        self, quota: Mapping[str, str], name: str, pid: int, *, rootless: bool, **more: str
    ) -> Any:
        fields = {"quota": dict(quota), "name": name, "pid": pid, "rootless": rootless}
        return self.ask("open", {**fields, **more})

    def take(self, name: str, quota: Mapping[str, str], **more: Any) -> dict[str, Any]:
        fields = {"kind": "command", "name": name, "quota": dict(quota), "wait_seconds": 0}
        return self.ask("queue-take", fields | more)

    def poll(self, ticket: str, secret: str) -> dict[str, Any]:
        return self.ask("queue-poll", {"ticket": ticket, "secret": secret})

    def cancel(self, ticket: str) -> dict[str, Any]:
        return self.ask("queue-cancel", {"ticket": ticket})

    def queue(self) -> list[Any]:
        return list(self.ask("queue").get("rows", []))

    def prepare(self, claim: str, devices: Sequence[Any], *pods: str, **keys: str) -> Any:
        fields = {"claim": claim, "namespace": "team", "name": claim, "devices": list(devices)}
        return self.ask("claim-prepare", {**fields, "pods": list(pods), "parameters": keys})

    def set_pods(self, claim: str, *pods: str) -> dict[str, Any]:
        return self.ask("claim-pods", {"claim": claim, "pods": list(pods)})

    def unprepare(self, claim: str) -> dict[str, Any]:
        return self.ask("claim-unprepare", {"claim": claim})

    def claims(self) -> list[Any]:
        return list(self.ask("claims").get("rows", []))

    def evict(self, name: str, *, hold: bool = False) -> dict[str, Any]:
        return self.ask("evict", {"name": name, "hold": hold, "reason": "guard"})

    def restore(self, name: str) -> dict[str, Any]:
        return self.ask("restore", {"name": name})

    def move(self, name: str, card: str) -> dict[str, Any]:
        return self.ask("move", {"name": name, "card": card})

    def node_setting(self, key: str, value: str | None) -> dict[str, Any]:
        label = {"value": value, "source": f"label guard/{key}"} if value else {}
        return self.ask("node-setting", {"key": key, **label})

    def tenant(self, name: str) -> dict[str, Any]:
        return self.ask("tenant", {"name": name})

    def tenants(self) -> list[Any]:
        return list(self.ask("tenants", {"all": True}).get("rows", []))

    def why(self, name: str) -> dict[str, Any]:
        return self.ask("why", {"name": name})

    def set(self, name: str, changes: Mapping[str, str]) -> dict[str, Any]:
        return self.ask("set", {"name": name, **changes})

    def pause(self, name: str, why: str) -> dict[str, Any]:
        return self.ask("pause", {"name": name, "reason": why})

    def resume(self, name: str) -> dict[str, Any]:
        return self.ask("resume", {"name": name})

    def stop(self, name: str, signal: str, seconds: int) -> dict[str, Any]:
        return self.ask("stop", {"name": name, "signal": signal, "timeout": seconds})

    def card_policy(self, card: str, policy: str | None) -> dict[str, Any]:
        return self.ask("card-policy", {"card": card} | ({"policy": policy} if policy else {}))

    def cordon(self, card: str, reason: str) -> dict[str, Any]:
        return self.ask("card-cordon", {"card": card, "reason": reason})

    def uncordon(self, card: str) -> dict[str, Any]:
        return self.ask("card-uncordon", {"card": card})

    def cards(self) -> dict[str, Any]:
        return self.ask("cards")

    def reload(self) -> dict[str, Any]:
        return self.ask("reload")

    def status(self) -> dict[str, Any]:
        return self.ask("status")

    def metrics(self) -> dict[str, Any]:
        return self.ask("metrics")

    def ask(
        self, op: str, fields: Mapping[str, Any] | None = None, fds: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Send one request; return the last packet of the answer, and what came before as rows."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as link:
            link.settimeout(_SECONDS)
            link.connect(str(self.path))
            packet = json.dumps({"op": op, **(fields or {})}).encode()
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
            link.sendmsg([packet], [rights] if fds else [])
            rows = []
            while True:
                answer = json.loads(link.recv(_MOST_BYTES))
                if "row" in answer:
                    rows.append(answer["row"])
                elif "ok" in answer:
                    return {**answer, "rows": rows} if rows else dict(answer)
