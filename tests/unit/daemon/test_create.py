# SPDX-License-Identifier: Apache-2.0
"""create: what becomes of a bundle, and of what is promised for it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.identity import processes
from gpushare.daemon.life import bind, release
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import NoRoom
from gpushare.oci import edits, spec
from gpushare.quota import QuotaError

from . import fakes
from .bundles import SETKEY, THEIRS, Container
from .fakes import GIB

SANDBOX = {"io.kubernetes.cri.container-type": "sandbox"}
CARD = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
RULE = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rwm"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with fakes.node(tmp_path) as made:
        yield made


def with_a_card(annotations: dict[str, str]) -> dict[str, Any]:
    rules = [{"allow": False, "access": "rwm"}, RULE]
    return {
        "annotations": annotations,
        "linux": {"devices": [CARD], "resources": {"devices": rules}},
    }


def test_the_hooks_of_others_stay_and_come_first(node: Node, tmp_path: Path) -> None:
    container = Container(tmp_path / "b", "GPUSHARE_MEMORY=4GiB")
    given = container.create(node)
    assert given["given"] == "shared"
    hooks = container.document()["hooks"]
    assert hooks["prestart"] == [SETKEY]
    assert hooks["createRuntime"][0] == THEIRS
    assert [hook["args"][0] for hook in hooks["createRuntime"]] == ["theirs", "gpushare-hook"]
    assert [hook["args"][1] for hook in hooks["poststop"]] == ["poststop"]
    assert all(given["key"] in hook["args"] for hook in hooks["poststop"])


def test_a_sandbox_is_left_as_it_is(node: Node, tmp_path: Path) -> None:
    container = Container(tmp_path / "b", annotations=SANDBOX)
    before = container.text()
    assert container.create(node, "weak")["given"] == "none"
    assert container.text() == before
    assert not node.ledger.entries


def test_who_calls_itself_a_sandbox_does_not_keep_an_unmetered_card(
    node: Node, tmp_path: Path
) -> None:
    container = Container(tmp_path / "whole", **with_a_card(SANDBOX))
    assert container.create(node)["given"] == "whole"
    assert [entry.isolation for entry in node.ledger.entries.values()] == ["exclusive"]
    # The card is taken now: a second one is told so, and never started with what it brought.
    second = Container(tmp_path / "second", **with_a_card(SANDBOX))
    with pytest.raises(QuotaError, match="belongs to"):
        second.create(node)


def test_a_container_of_a_pod_that_asks_for_another_is_noted_as_seen(
    node: Node, tmp_path: Path
) -> None:
    annotations = {
        "gpushare.io/container.train.memory": "4GiB",
        "io.kubernetes.cri.container-name": "sidecar",
    }
    container = Container(tmp_path / "b", annotations=annotations)
    before = container.document()
    assert container.create(node)["given"] == "none"
    after = container.text()
    assert container.document() == {**before, edits.RECORD: {}}
    assert container.create(node)["given"] == "none"
    assert container.text() == after


def test_a_second_create_before_the_first_was_bound_takes_its_place(
    node: Node, tmp_path: Path
) -> None:
    container = Container(tmp_path / "b", "GPUSHARE_MEMORY=4GiB")
    first = container.create(node)
    once = container.text()
    second = container.create(node)
    assert first == second
    assert container.text() == once
    assert [room.promised_bytes for room in node.rooms()] == [4 * GIB]
    assert node.mounts.made() == [first["key"]]
    pid = os.getpid()
    bind.bind(first["key"], "4f1c", pid, os.getppid(), node)
    with pytest.raises(NoRoom, match="still runs"):
        container.create(node)
    with pytest.raises(bind.NoSuchTenant, match="is bound to process"):
        bind.bind(first["key"], "4f1c", os.getppid(), pid, node)
    assert container.text() == once
    assert processes.look(pid) is not None


def test_a_second_runtime_does_not_take_the_pages_from_the_first(
    node: Node, tmp_path: Path
) -> None:
    container = Container(tmp_path / "b", "GPUSHARE_MEMORY=4GiB")
    with subprocess.Popen(["sleep", "1000"]) as first:
        given = container.create(node, maker=first.pid)
        pages = node.tenants.pages[given["key"]]
        with pytest.raises(NoRoom, match=f"is being made by process {first.pid}; wait"):
            container.create(node, maker=os.getpid())
        assert node.tenants.pages[given["key"]] is pages
        assert container.create(node, maker=first.pid) == given  # its own second try
        first.kill()
    # It failed, or was killed: who tries again need not wait for the reservation to expire.
    assert container.create(node, maker=os.getpid()) == given
    assert [room.promised_bytes for room in node.rooms()] == [4 * GIB]
    entry = node.ledger.entries[given["key"]]
    assert (entry.maker, entry.state) == (os.getpid(), "reserved")


@pytest.mark.parametrize("step", ["store", "edits"])
def test_what_fails_after_the_reservation_takes_it_back(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    container = Container(tmp_path / "b", "GPUSHARE_MEMORY=4GiB")
    before = container.text()
    monkeypatch.setattr(*{"store": (spec, "store"), "edits": (edits, "apply")}[step], fail)
    with pytest.raises(OSError, match="No space"):
        container.create(node)
    assert container.text() == before
    assert sorted(path.name for path in container.folder.iterdir()) == ["config.json", "rootfs"]
    assert not node.ledger.entries
    assert node.mounts.made() == []
    assert not node.tenants.pages


def test_a_start_whose_quota_is_gone_loses_what_the_earlier_one_was_given(
    node: Node, tmp_path: Path
) -> None:
    container = Container(tmp_path / "b", "GPUSHARE_MEMORY=4GiB")
    before = container.document()
    container.create(node)
    edited = container.document()
    edited["process"]["env"].remove("GPUSHARE_MEMORY=4GiB")
    (container.folder / "config.json").write_text(json.dumps(edited))
    assert container.create(node)["given"] == "none"
    before["process"]["env"].remove("GPUSHARE_MEMORY=4GiB")
    assert container.document() == before
    assert [entry.state for entry in node.ledger.entries.values()] == ["none"]
    assert node.mounts.made() == []


@pytest.fixture
def runtime() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is to make a container."""
    with subprocess.Popen(["sleep", "1000"]) as started:
        yield started
        started.kill()


def test_what_a_runtime_that_ended_had_reserved_is_free_at_once(
    node: Node, tmp_path: Path, runtime: subprocess.Popen[bytes]
) -> None:
    """Nobody binds it any more: the hook runs while the runtime does."""
    key = Container(tmp_path / "b", "GPUSHARE_MEMORY=4GiB").create(node, maker=runtime.pid)["key"]
    release.process_ended(key, node)
    assert node.ledger.entries[key].state == "reserved"
    runtime.kill()
    runtime.wait()
    release.process_ended(key, node)
    assert not node.ledger.entries
    assert node.mounts.made() == []


def test_a_runtime_that_ended_before_the_answer_holds_nothing(
    node: Node, tmp_path: Path, runtime: subprocess.Popen[bytes]
) -> None:
    runtime.kill()
    runtime.wait()
    Container(tmp_path / "b", "GPUSHARE_MEMORY=4GiB").create(node, maker=runtime.pid)
    assert not node.ledger.entries
    assert node.mounts.made() == []
