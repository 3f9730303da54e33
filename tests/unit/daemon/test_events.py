# SPDX-License-Identifier: Apache-2.0
"""What is logged is listed, cannot be made to grow, and is written without privileges."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import gpushare.daemon
from gpushare.daemon.core import privileges
from gpushare.daemon.core.log import (
    Allowances,
    event_count,
    log,
    report_suppressed,
    set_owner_lookup,
)
from gpushare.daemon.store.ledger import TenantNotFound
from gpushare.daemon.views.event_pages import event_page
from gpushare.events import EVENTS, KEPT, LASTING, SENT_BY_TENANTS, UNCHARGED

from .fakes import FakeDaemon

ONE, TWO = f"aaaa{'1' * 60}", f"aaaa{'2' * 60}"


def asked_of(node: FakeDaemon, name: str, *containers: tuple[str, str, str]) -> Any:
    """Ask for a page of events; each of `containers` has a key, an ID and a name."""
    store: Any = Mock(containers=lambda _: containers, has_card=lambda _: False)
    store.page.return_value = []
    node.history = store
    list(event_page(name, 0.0, 1, node))
    return store.page.call_args.args[0]


def test_events_are_of_every_container_that_the_name_may_mean(node: FakeDaemon) -> None:
    first, second = ("1", ONE, "train"), ("2", TWO, "trial")
    assert asked_of(node, "tra", first, second).keys == {"1"}
    assert asked_of(node, "tr", first, second).keys == {"1", "2"}
    named_after_another = asked_of(node, TWO[:12], ("1", ONE, TWO[:12]), second)
    assert named_after_another.keys == {"1", "2"}, "a name hides no events of another container"
    with pytest.raises(TenantNotFound, match="no container is named"):
        asked_of(node, "ai", first, second)


SOURCES = Path(gpushare.daemon.__file__).parent


def logged() -> Iterator[tuple[str, str]]:
    """Yield (where, event) for each call of `log`."""
    for source in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "log":
                event = node.args[0]
                where = f"{source.relative_to(SOURCES)}:{node.lineno}"
                assert isinstance(event, ast.Constant), f"{where}: an event's name is a literal"
                yield where, str(event.value)


def test_the_events_that_are_logged_are_those_that_are_listed() -> None:
    found = {event: where for where, event in logged()}
    assert {event: where for event, where in found.items() if event not in EVENTS} == {}
    assert sorted(EVENTS.keys() - found.keys()) == []


KEY, OTHER = "a" * 16, "b" * 16


BURST = 256 << 10


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that are written."""
    written: list[bytes] = []
    monkeypatch.setattr("os.write", lambda _fd, line: written.append(line))
    return written


def events(lines: list[bytes]) -> list[str]:
    return [json.loads(line)["event"] for line in lines]


def test_endless_refusals_of_one_user_do_not_fill_the_log(lines: list[bytes]) -> None:
    before = event_count("caller-refused")
    for number in range(20_000):
        log("caller-refused", "warning", op="open", pid=number, uid=1000, error="x" * 200)
    assert sum(map(len, lines)) < BURST + 4096
    assert event_count("caller-refused") - before == 20_000  # each one is counted
    log("caller-refused", "warning", op="open", pid=1, uid=1001, error="another user")
    assert json.loads(lines[-1])["uid"] == 1001
    written = len(lines)
    report_suppressed()
    [report] = [json.loads(line) for line in lines[written:]]
    assert report["event"] == "log-lines-suppressed"
    assert report["lines"] == 20_000 - (written - 1)
    report_suppressed()
    assert len(lines) == written + 1  # nothing more to report


def test_a_user_of_many_uids_fills_no_log_either(lines: list[bytes]) -> None:
    for uid in range(100_000, 120_000):
        for _ in range(2):
            log("caller-refused", "warning", op="open", pid=1, uid=uid, error="x" * 200)
    assert sum(map(len, lines)) < (1 << 20) + 8192
    lines.clear()
    set_owner_lookup(lambda _key: "uid 100000")
    log("over-quota-frozen", "warning", tenant=KEY, used_bytes=1)  # evidence is not hidden by it
    set_owner_lookup(lambda _key: "")
    assert events(lines) == ["over-quota-frozen"]


def test_the_messages_of_a_tenant_hide_nothing_that_is_known_of_it(lines: list[bytes]) -> None:
    for _ in range(20_000):
        log("tenant-log-received", "error", tenant=KEY, container_pid=1, text="\0" * 1000)
    assert sum(map(len, lines)) < BURST + 8192
    lines.clear()
    log("over-quota-frozen", "warning", tenant=KEY, used_bytes=1)
    log("tenant-released", tenant=KEY, reason="its process has ended")
    log("tenant-log-received", "error", tenant=OTHER, container_pid=1, text="of another")
    assert events(lines) == ["over-quota-frozen", "tenant-released", "tenant-log-received"]


def test_host_processes_of_a_user_are_charged_to_the_user(lines: list[bytes]) -> None:
    set_owner_lookup(lambda _key: "uid 1000")
    for number in range(20_000):
        log("tenant-reserved", tenant=f"{number:016x}", name="x" * 100)
    set_owner_lookup(lambda _key: "")
    log("tenant-released", tenant=f"{19_999:016x}", name="x" * 100)  # its record is gone by then
    assert sum(map(len, lines)) < BURST + 4096


def test_as_many_sources_as_there_are_take_no_memory_without_end() -> None:
    allowances = Allowances(1.0, 1.0)
    for number in range(50_000):
        assert allowances.take(str(number), 0.0)
    assert len(allowances._of) <= 4096


def test_the_classes_of_events_are_events() -> None:
    assert sorted((LASTING | UNCHARGED | SENT_BY_TENANTS) - EVENTS.keys()) == []
    assert KEPT.keys() >= LASTING
    assert not SENT_BY_TENANTS & (LASTING | UNCHARGED | KEPT.keys())


def test_the_unit_leaves_the_capabilities_that_the_daemon_keeps() -> None:
    kept = {f"CAP_{why.partition(':')[0]}" for why in privileges.KEPT.values()}
    unit = Path(__file__).parents[3] / "packaging/systemd/gpushared.service"
    bounds = re.findall(r"(?m)^CapabilityBoundingSet=(.*)$", unit.read_text())
    assert set(" ".join(bounds).split()) == kept
