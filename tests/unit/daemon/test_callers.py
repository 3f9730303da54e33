# SPDX-License-Identifier: Apache-2.0
"""The table of operations: who may use what, which fields each takes, and packets that are none."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushare import protocol
from gpushare.daemon.eviction.steps import EvictionFailed
from gpushare.daemon.operator.reload import InvalidFile
from gpushare.daemon.service.control_server import (
    ControlRequest,
    Forbidden,
    Peer,
    decode_request,
    find_operation,
    refusal_packet,
)
from gpushare.daemon.service.operations import Operations
from gpushare.daemon.store.ledger import TenantNotFound
from gpushare.errors import ErrorCode
from gpushare.protocol.operations import OPERATIONS, MalformedRequest
from gpushare.quota.errors import QuotaError
from tests.properties import any_json, any_text

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
DEVICE = {"request": "gpu", "card": "GPU-0000", "memory_bytes": 1 << 30, "cores": 0, "share": ""}
#: What each takes to be asked at all, and who but root may.
FIELDS: dict[str, tuple[dict[str, Any], frozenset[str]]] = {
    "hello": ({}, frozenset(CALLERS)),
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
    "claim-prepare": (
        {"claim": "0a", "namespace": "a", "name": "b", "pods": [], "devices": [DEVICE]},
        frozenset(),
    ),
    "claim-pods": ({"claim": "0a", "pods": []}, frozenset()),
    "claim-unprepare": ({"claim": "0a"}, frozenset()),
    "claims": ({}, frozenset({"a reader"})),
}


def test_each_row_has_a_function_and_each_function_a_row() -> None:
    functions = {
        name.replace("_", "-"): function
        for name, function in inspect.getmembers(Operations, inspect.isfunction)
        if not name.startswith("_") and name != "bound"
    }
    assert functions.keys() == OPERATIONS.keys() == FIELDS.keys()
    for op, row in OPERATIONS.items():
        takes = inspect.signature(functions[op]).parameters
        named = {name for name, each in takes.items() if each.kind is not each.VAR_KEYWORD}
        fields = {field.parameter for field in row.fields()}
        assert named - {"self", "request"} <= fields, op
        assert fields <= named or len(named) < len(takes), op


@pytest.mark.parametrize("who", CALLERS)
def test_each_caller_gets_only_its_operations(node: FakeDaemon, who: str) -> None:
    """Whatever else is wrong: no other caller gets so far that its request is judged."""
    for op, (fields, others) in FIELDS.items():
        request = ControlRequest({"op": op, **fields}, CALLERS[who])
        before = dict(node.ledger.entries)
        failure = outcome(request, node)
        if who == "root" or who in others:
            assert failure is not Forbidden, op
        else:
            assert failure is Forbidden, op
            assert node.ledger.entries == before


def test_a_field_of_another_type_is_malformed(node: FakeDaemon) -> None:
    for op, row in OPERATIONS.items():
        for field in row.fields():
            wrongs: tuple[Any, ...] = ([[]], {"a": [1]}, -0.5)
            for wrong in wrongs:
                with pytest.raises(MalformedRequest, match=field.name):
                    answer(asked(op, **{field.name: wrong}), node)


def test_a_field_that_is_missing_is_malformed_unless_it_is_optional(node: FakeDaemon) -> None:
    for op, (fields, _) in FIELDS.items():
        required = {field.name for field in OPERATIONS[op].fields() if field.is_required}
        assert required <= fields.keys()
        for name in fields:
            request = asked(op, **{name: None})
            if name in required or (op, name) in {("bind", "pid"), ("set", "memory")}:
                with pytest.raises(MalformedRequest, match=name):
                    answer(request, node)
            else:
                assert outcome(request, node) is not MalformedRequest, (op, name)


def test_a_field_of_a_newer_version_is_ignored(node: FakeDaemon) -> None:
    for op in FIELDS.keys() - {"create"}:  # which has not the descriptors either
        assert outcome(asked(op, newer=[1]), node) is not MalformedRequest, op


def asked(op: str, **changed: Any) -> ControlRequest:
    """Return root's request for an operation, without the fields that are None."""
    fields = {"op": op, **FIELDS[op][0], **changed}
    named = {name: value for name, value in fields.items() if value is not None}
    return ControlRequest(named, CALLERS["root"])


def answer(request: ControlRequest, node: FakeDaemon) -> None:
    rows, _ = find_operation(request, node.operations).run(request)
    list(rows)


def outcome(request: ControlRequest, node: FakeDaemon) -> type[Exception] | None:
    """Return how a request fails; None: it does not."""
    try:
        answer(request, node)
    except Exception as error:  # noqa: BLE001 - whichever it is
        return type(error)
    return None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (QuotaError("--memory", "4Q", "is no size", "use 4GiB"), ErrorCode.REFUSED),
        (TenantNotFound("no container is named train", ["train-2"]), ErrorCode.NOT_FOUND),
        (InvalidFile("gpushare.yaml was rejected"), ErrorCode.INVALID),
        (EvictionFailed("the driver failed"), ErrorCode.FAILED),
        (Forbidden("this requires root"), ErrorCode.FORBIDDEN),
        (MalformedRequest("op is none of these"), ErrorCode.USAGE),
        (OSError(28, "No space left on device", "ledger"), ErrorCode.FAILED),
    ],
)
def test_the_code_of_a_refusal_says_whose_fault_it_is(error: Exception, code: ErrorCode) -> None:
    packet = refusal_packet(error)
    assert packet is not None
    assert packet["code"] == code.text
    if isinstance(error, QuotaError):
        assert (packet["key"], packet["value"], packet["fix"]) == ("--memory", "4Q", "use 4GiB")
    if isinstance(error, TenantNotFound):
        assert packet["candidates"] == ["train-2"]


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(st.binary(max_size=4096), any_json(any_text(8)).map(lambda v: json.dumps(v).encode()))
)
@example(b'{"a": 1, "a": 2}')
@example(b'{"a": NaN}')
@example(b'{"a": 1e999}')
@example(b'{"a": "\\ud800"}')
@example(b'{"\\udfff": {"a": ["\\ud83d\\ude00\\ude00"]}}')
@example(b"[" * 4000)
@example(b'{"a": ' + b"9" * 4000 + b"}")
def test_a_packet_is_one_object_or_refused(packet: bytes) -> None:
    try:
        decoded: dict[str, Any] = decode_request(packet)
    except MalformedRequest:
        return
    assert isinstance(decoded, dict)
    # What was read can be written again: nothing in it that JSON cannot say.
    assert protocol.decode(protocol.encode(decoded, limit=1 << 20)) == decoded
    json.dumps(decoded, ensure_ascii=False).encode()
