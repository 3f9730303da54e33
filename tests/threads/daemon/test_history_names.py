# SPDX-License-Identifier: Apache-2.0
"""Whose events `history NAME` returns: a name means containers, and each has all its events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare import protocol
from gpushare.daemon.identity import container_names
from gpushare.daemon.identity.container_names import ContainerName
from gpushare.daemon.service.control_request import ControlRequest, Peer, TenantNotFound
from gpushare.daemon.service.node_operations import NODE_OPERATIONS
from gpushare.daemon.store.history import History
from gpushare.daemon.store.record import TenantRecord
from gpushare.protocol import HistoryEvent
from tests.unit.daemon import fakes
from tests.unit.daemon.fakes import FakeDaemon

FIRST, SECOND, THIRD = "4f5e6d" + "0" * 58, "4f5e99" + "1" * 58, "c0ffee" + "2" * 58
EVENT = "tenant-released"


@pytest.fixture
def daemon(node: FakeDaemon, tmp_path: Path) -> Iterator[FakeDaemon]:
    (tmp_path / "store").mkdir()
    node.history = History(tmp_path / "store", "boot-1", days=7.0, most_bytes=100 << 20)
    yield node
    node.history.close(10)


def note(daemon: FakeDaemon, event: str = EVENT, **fields: Any) -> None:
    assert daemon.history is not None
    daemon.history.note(time.time(), event, "info", fields)


def answer(daemon: FakeDaemon, name: str, after: int = 0) -> list[HistoryEvent]:
    asked = ControlRequest({"op": "history", "name": name, "after": after}, Peer(1, 0))
    assert daemon.history is not None
    assert daemon.history.settle(20)
    rows, _ = NODE_OPERATIONS["history"].run(asked, daemon)
    return list(rows)  # type: ignore[arg-type]


def numbers(daemon: FakeDaemon, name: str) -> list[int]:
    return [row["number"] for row in answer(daemon, name)]


def refused(daemon: FakeDaemon, name: str) -> TenantNotFound:
    with pytest.raises(TenantNotFound) as caught:
        answer(daemon, name)
    return caught.value


def running(key: str, identity: str, name: str) -> TenantRecord:
    return replace(fakes.entry(key), id=identity, name=name, engine="docker", state="bound")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("", [1, 2, 3, 4, 5]),
        ("team/train-0/main", [1, 3]),
        ("main", [1, 3]),
        ("train-0/main", [1, 3]),
        ("train-0", [1, 3]),
        ("team/train-0", [1, 3]),
        ("team", [1, 3]),
        ("tea", [1, 3]),
        ("serve", [2]),
        ("serv", [2]),
        ("4f5e9", [2]),
        (SECOND, [2]),
        ("k2", [2]),
        ("GPU-1", [4]),
        ("team/gpus", [5]),
    ],
)
def test_a_container_is_found_as_ps_shows_it(
    daemon: FakeDaemon, name: str, found: list[int]
) -> None:
    note(daemon, tenant="k1", id=FIRST, name="team/train-0/main")
    note(daemon, tenant="k2", id=SECOND, name="serve")
    note(daemon, "gate-bypass-detected", tenant="k1")  # of which only the key was known
    note(daemon, "card-policy-changed", card="GPU-1")
    if name in {"", "team/gpus"}:
        note(daemon, "claim-prepared", claim="uid", name="team/gpus")
    assert numbers(daemon, name) == found


def test_a_running_container_has_the_name_that_it_has_now(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events were stored under its ID, and nothing has renamed it since."""
    key = "a" * 16
    note(daemon, "tenant-reserved", tenant=key, id=FIRST, name=FIRST[:12])
    note(daemon, "tenant-bound", tenant=key, id=FIRST, name=FIRST[:12])
    daemon.ledger.add(running(key, FIRST, ""))
    told = ContainerName("docker", "web")
    monkeypatch.setattr(container_names, "ask_engines", lambda *_: told)
    rows = answer(daemon, "web")
    assert [(row["event"], row["id"], row["name"]) for row in rows] == [
        ("tenant-reserved", FIRST, "web"),
        ("tenant-bound", FIRST, "web"),
    ]


def test_containers_that_had_a_name_one_after_the_other_are_told_apart(daemon: FakeDaemon) -> None:
    note(daemon, tenant="k1", id=FIRST, name="train")
    note(daemon, tenant="k2", id=SECOND, name="train")
    daemon.ledger.add(running("k3" * 8, THIRD, "train"))
    note(daemon, "tenant-bound", tenant="k3" * 8, id=THIRD, name=THIRD[:12])
    assert [row["id"] for row in answer(daemon, "train")] == [FIRST, SECOND, THIRD]
    assert numbers(daemon, SECOND[:12]) == [2]
    assert numbers(daemon, "trai") == [1, 2, 3]


def test_a_renamed_container_takes_no_others_events_along(daemon: FakeDaemon) -> None:
    note(daemon, tenant="k1", id=FIRST, name="train")
    note(daemon, tenant="k2", id=SECOND, name="train")
    note(daemon, tenant="k1", id=FIRST, name="old")
    assert numbers(daemon, "old") == [1, 3]


@pytest.mark.parametrize("name", ["tr", "4f5e", "4"])
def test_a_start_of_several_containers_is_refused_with_them(daemon: FakeDaemon, name: str) -> None:
    note(daemon, tenant="k1", id=FIRST, name="train")
    note(daemon, tenant="k2", id=SECOND, name="try")
    error = refused(daemon, name)
    for part in (f"train (ID {FIRST[:12]})", f"try (ID {SECOND[:12]})", "Use the whole name"):
        assert part in str(error)
    assert error.candidates == [FIRST[:12], SECOND[:12]]
    assert [numbers(daemon, one) for one in error.candidates] == [[1], [2]]


def test_a_name_that_begins_anothers_id_is_refused(daemon: FakeDaemon) -> None:
    note(daemon, tenant="k1", id=FIRST, name="train")
    note(daemon, tenant="k2", id=THIRD, name=FIRST[:12])
    assert "is the name of one container and the start of the ID of another" in str(
        refused(daemon, FIRST[:12])
    )


def test_an_id_that_a_user_chose_is_not_shortened(daemon: FakeDaemon) -> None:
    note(daemon, tenant="k1", id="job-1", name="job-1")
    note(daemon, tenant="k2", id="job-10", name="job-10")
    assert numbers(daemon, "job-1") == [1]


@pytest.mark.parametrize("name", ["%", "nobody", "rain", "_rain", "main/train"])
def test_a_name_that_never_was_is_refused(daemon: FakeDaemon, name: str) -> None:
    note(daemon, tenant="k1", id=FIRST, name="team/train/main")
    daemon.ledger.add(running("b" * 16, SECOND, "serve"))
    error = refused(daemon, name)
    assert "see gpushare ps -a" in str(error)
    assert error.candidates == ["serve"]


def test_a_container_without_events_is_no_error(daemon: FakeDaemon) -> None:
    note(daemon)  # of a node; the file exists
    daemon.ledger.add(running("b" * 16, SECOND, "serve"))
    assert answer(daemon, "serve") == []
    assert answer(daemon, fakes.card(1).uuid) == []


def test_refused_containers_are_found_by_pod_and_by_id(daemon: FakeDaemon) -> None:
    pod = {"namespace": "team", "name": "job", "uid": "0a", "container": "train"}
    more: dict[str, Any] = {"op": "create", "error": "no room", "pod": pod}
    note(daemon, "request-refused", id=FIRST, name="team/job/train", **more)
    note(daemon, "request-refused", id=SECOND, name="team/job/eval", **more)
    note(daemon, "request-refused", id=THIRD, name="team/other-job/train", **more)
    for name, found in (
        ("team/job/train", [1]),
        ("job/train", [1]),
        ("train", [1, 3]),
        ("job", [1, 2]),
        ("team", [1, 2, 3]),
        (THIRD[:4], [3]),
    ):
        assert numbers(daemon, name) == found
    assert answer(daemon, "job/eval")[0]["fields"]["pod"] == pod


def test_a_container_that_was_refused_before_it_started_is_one(daemon: FakeDaemon) -> None:
    note(daemon, "request-refused", id=FIRST, op="create", error="no room")
    note(daemon, "tenant-reserved", tenant="k1", id=FIRST, name="train")
    assert numbers(daemon, "train") == [1, 2]


def test_all_pages_of_an_answer_are_of_the_same_containers(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HISTORY_ROWS", 2)
    for _ in range(3):
        note(daemon, tenant="k1", id=FIRST, name="train")
    first = answer(daemon, "train")
    note(daemon, tenant="k2", id=SECOND, name="train")
    last = answer(daemon, "train", after=first[-1]["number"])
    assert [row["id"] for row in (*first, *last)] == [FIRST] * 3
    assert numbers(daemon, "train") == [1, 2]
    assert [row["id"] for row in answer(daemon, "train", after=3)] == [SECOND]
    assert daemon.history is not None
    assert len(daemon.history.subjects) == 0
