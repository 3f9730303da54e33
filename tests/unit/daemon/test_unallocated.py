# SPDX-License-Identifier: Apache-2.0
"""Card use without an allocation: containers, and memory that only the driver reports."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.identity.processes import Process
from gpushare.daemon.views.daemon_status import status_row
from gpushare.daemon.views.rows import card_rows

from . import fakes
from .busy_card import CARD, BusyCard

GIB = 1 << 30
PID = 77
CONTAINER = f"/docker/4f5e6d7c8b9a{'0' * 52}"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BusyCard]:
    driver = BusyCard(seed=6)
    with fakes.node(tmp_path, driver) as node:
        driver.settle(node, monkeypatch)
        driver.noise = False
        driver.tenant("a", 4)
        yield driver


@pytest.fixture
def ended(world: BusyCard, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What was sent to which process, by pidfd: the PID stands for it."""
    sent: list[tuple[int, int]] = []
    truth = world.node.sampler
    monkeypatch.setattr(truth.resolver, "descriptor", lambda pid: pid)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *sent_: sent.append(sent_))
    return sent


def come(world: BusyCard, cgroup: str) -> None:
    """Have a process of no tenant take 3 GiB of the card."""
    world.there[PID] = Process(PID, 1, 1, PID), cgroup
    world.clients[PID] = 3 * GIB


def seen(world: BusyCard, looks: int) -> None:
    for _ in range(looks):
        world.look()


def events(said: str) -> list[str]:
    found = [json.loads(line) for line in said.splitlines()]
    return [
        line["event"] for line in found if line["event"].startswith(("unallocated-", "memory-un"))
    ]


def test_an_unallocated_container_is_reported_once(
    world: BusyCard, ended: list[tuple[int, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    seen(world, 3)
    come(world, CONTAINER)
    seen(world, 20)
    assert events(capfd.readouterr().err) == ["unallocated-container-detected"]
    [warning] = [one for one in status_row(world.node)["warnings"] if "bypasses gpushare" in one]
    assert warning.startswith("process 77 (program) in docker 4f5e6d7c8b9a has 3 GiB of card 0")
    [row] = next(card_rows(world.node))["non_tenant_processes"]
    assert (row["pid"], row["container"]) == (PID, "docker 4f5e6d7c8b9a")
    assert ended == []


def test_it_is_ended_where_the_operator_chose_so(
    world: BusyCard, ended: list[tuple[int, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    world.node.node.config = replace(world.node.node.config, unknown="kill")
    come(world, CONTAINER)
    seen(world, 3)
    assert ended == []
    seen(world, 3)
    assert (PID, signal.SIGKILL) in ended
    assert "unallocated-container-killed" in events(capfd.readouterr().err)


@pytest.mark.parametrize(
    ("cgroup", "action"),
    [("/user.slice/session-2.scope", "kill"), ("/", "kill"), (CONTAINER, "ignore")],
)
def test_a_program_of_the_host_is_never_killed_or_reported(
    world: BusyCard,
    ended: list[tuple[int, int]],
    cgroup: str,
    action: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    world.node.node.config = replace(world.node.node.config, unknown=action)
    come(world, cgroup)
    seen(world, 20)
    assert (ended, status_row(world.node)["warnings"]) == ([], [])
    assert events(capfd.readouterr().err) == []


def test_a_ghost_is_not_ended(
    world: BusyCard, ended: list[tuple[int, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    """It was a container's, and its PID now belongs to a process of another."""
    world.node.node.config = replace(world.node.node.config, unknown="kill")
    come(world, CONTAINER)
    world.look()
    world.there[PID] = Process(PID, 2, 1, PID), CONTAINER
    seen(world, 20)
    assert ended == []
    assert "unallocated-container-killed" not in events(capfd.readouterr().err)


def test_unaccounted_memory_is_shown_and_reported_if_it_lasts(
    world: BusyCard, capfd: pytest.CaptureFixture[str]
) -> None:
    world.more, world.pages_out, world.shares = 9 * GIB, False, False
    seen(world, 3)
    assert events(capfd.readouterr().err) == []
    seen(world, 100)
    assert events(capfd.readouterr().err) == ["memory-unattributed-detected"]
    assert 8 * GIB <= next(card_rows(world.node))["unattributed_bytes"] <= 9 * GIB
    assert world.done == []
    world.more = 0
    seen(world, 1)
    assert next(card_rows(world.node))["unattributed_bytes"] == 0
    assert CARD in world.node.observed.unattributed
