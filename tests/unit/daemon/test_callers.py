# SPDX-License-Identifier: Apache-2.0
"""Which caller may use what on the control socket: every operation by every kind of caller."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare.daemon.service.control_request import ControlRequest, Forbidden, Peer
from gpushare.daemon.service.control_server import find_operation

from .fakes import FakeDaemon

KEY = "a" * 16
USER = 12345
#: Of those that read_group lets to the socket; which of them that are, the socket's mode says.
CALLERS = {
    "root": Peer(1, 0),
    "a reader": Peer(2, USER),
    "root in a container": Peer(3, 0, "tenant"),
    "a user in a container": Peer(4, USER, "tenant"),
    "root that is gone": Peer(5, 0, "gone"),
}
#: What each takes to be asked at all, and who but root may.
FIELDS: dict[str, tuple[dict[str, Any], frozenset[str]]] = {
    "cards": ({}, frozenset({"a reader"})),
    "tenants": ({}, frozenset({"a reader"})),
    "tenant": ({"name": "train"}, frozenset({"a reader"})),
    "why": ({"name": "train"}, frozenset({"a reader"})),
    "status": ({}, frozenset({"a reader"})),
    "metrics": ({}, frozenset({"a reader"})),
    "history": ({}, frozenset({"a reader"})),
    "open": ({"quota": {"memory": "1GiB"}, "name": "x"}, frozenset({"a reader"})),
    "queue": ({}, frozenset({"a reader"})),
    "queue-take": ({"kind": "command", "wait_seconds": 0}, frozenset({"a reader"})),
    "queue-poll": ({"ticket": "0" * 8, "secret": "0" * 32}, frozenset({"a reader"})),
    "queue-cancel": ({"ticket": "0" * 8}, frozenset({"a reader"})),
    "create": ({"id": "x", "bundle": "/x", "marker": "strong"}, frozenset()),
    "checkpoint": ({"id": "x"}, frozenset()),
    "bind": ({"key": KEY, "id": "x", "pid": 1}, frozenset()),
    "release": ({"key": KEY, "id": "x"}, frozenset()),
    "set": ({"name": "train", "memory": "1GiB"}, frozenset()),
    "pause": ({"name": "train"}, frozenset()),
    "resume": ({"name": "train"}, frozenset()),
    "stop": ({"name": "train", "signal": "TERM", "timeout": 1}, frozenset()),
    "evict": ({"name": "train"}, frozenset()),
    "restore": ({"name": "train"}, frozenset()),
    "move": ({"name": "train", "card": "1"}, frozenset()),
    "reload": ({}, frozenset()),
    "node-setting": ({"key": "defaults.policy"}, frozenset()),
    "card-policy": ({"card": "0", "policy": "best-effort"}, frozenset()),
    "card-cordon": ({"card": "0", "reason": "fan"}, frozenset()),
    "card-uncordon": ({"card": "0"}, frozenset()),
    "allocation": ({"card": "GPU-0000", "memory_bytes": 1 << 30}, frozenset()),
    "claim-prepare": ({"claim": "0a", "namespace": "a", "name": "b", "pods": []}, frozenset()),
    "claim-pods": ({"claim": "0a", "pods": []}, frozenset()),
    "claim-unprepare": ({"claim": "0a"}, frozenset()),
    "claims": ({}, frozenset({"a reader"})),
}


def test_the_table_has_every_operation(node: FakeDaemon) -> None:
    assert FIELDS.keys() == node.operations.keys()


@pytest.mark.parametrize("who", CALLERS)
@pytest.mark.parametrize("op", FIELDS)
def test_each_caller_gets_only_its_operations(node: FakeDaemon, op: str, who: str) -> None:
    """Whatever else is wrong: no other caller gets so far that its request is judged."""
    fields, others = FIELDS[op]
    request = ControlRequest({"op": op, **fields}, CALLERS[who])
    before = dict(node.ledger.entries)
    if who == "root" or who in others:
        assert not is_forbidden(request, node)
    else:
        assert is_forbidden(request, node)
        assert node.ledger.entries == before


def is_forbidden(request: ControlRequest, node: FakeDaemon) -> bool:
    try:
        rows, _ = find_operation(request, node.operations).run(request, node)
        list(rows)
    except Forbidden:
        return True
    except Exception:  # noqa: BLE001 - it was let through, and that is all we ask
        return False
    return False
