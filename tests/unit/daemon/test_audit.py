# SPDX-License-Identifier: Apache-2.0
"""The audit on a card on which much happens: the innocent are never touched, the others are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.daemon.node import Node
from gpushare.daemon.views.rows import tenant_row

from . import fakes
from .restless import CARD, CONTEXT, Program, Tenant, World

GIB = 1 << 30
LOOKS = 10_000
OVER = 120 * GIB  # whatever becomes of its quota


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    driver = World(seed=6)
    with fakes.node(tmp_path, driver) as node:
        driver.settle(node, monkeypatch)
        yield node


@pytest.fixture
def world(node: Node) -> World:
    driver = node.loaded().nvml
    assert isinstance(driver, World)
    driver.tenant("a", 4)
    driver.tenant("b", 2, most_gib=8)
    driver.tenant("c", 8, programs=3)
    driver.tenant("d", 90).bursts = True
    driver.tenant("e", 4, programs=2).passes = True
    return driver


def test_ten_thousand_looks_at_the_innocent_touch_nobody(world: World) -> None:
    for _ in range(LOOKS):
        world.look()
    assert world.done == []
    assert world.recorder.calls == []


def begin(world: World, looks: int = 60) -> Tenant:
    """Let everybody be innocent for a while, and return the one that will not be."""
    for _ in range(looks):
        world.look()
    assert world.done == []
    return world.tenants[0]


def apart(world: World, tenant: Tenant) -> Program:
    """Start a process of `tenant` that the driver knows, and no account."""
    program = world.start(tenant)
    tenant.unregister(program)
    tenant.programs.remove(program)
    return program


def until_frozen(world: World, tenant: Tenant, looks: int, during: Callable[[], None]) -> int:
    """Return how many looks it took until `tenant` was frozen, and nobody else was anything."""
    for number in range(looks):
        during()
        world.look()
        if ("freeze", tenant.key) in world.done:
            assert world.done == [("warn", tenant.key), ("freeze", tenant.key)]
            assert world.recorder.calls == [("hold", tenant.key)]
            return number + 1
    raise AssertionError(f"not frozen in {looks} looks: {world.done}")


def nothing() -> None:
    pass


def test_a_process_without_an_account_is_frozen(world: World) -> None:
    """The real library by its private path, a static program, `env -i`."""
    tenant = begin(world)
    world._has(apart(world, tenant), OVER)
    until_frozen(world, tenant, 16, nothing)


def test_what_a_process_takes_beside_its_account_is_frozen(world: World) -> None:
    tenant = begin(world)
    program = world.start(tenant)
    world._has(program, OVER)
    until_frozen(world, tenant, 16, program.todo.clear)


def test_who_enters_more_into_its_account_than_it_may_is_frozen(world: World) -> None:
    tenant = begin(world)
    program = world.start(tenant)
    tenant.programs.remove(program)
    program.buffers, program.contexts = OVER, 1
    world._has(program, OVER)
    tenant.write(program)
    until_frozen(world, tenant, 16, nothing)


def test_managed_memory_counts_as_the_account_claims_it(world: World) -> None:
    tenant = begin(world)
    program = world.start(tenant)
    tenant.programs.remove(program)
    program.managed = OVER
    tenant.write(program)
    until_frozen(world, tenant, 16, nothing)


def test_who_forges_its_account_anew_at_every_moment_is_frozen(world: World) -> None:
    """So that it explains the most and holds the least."""
    tenant = begin(world)
    program = world.start(tenant)
    tenant.programs.remove(program)
    world._has(program, OVER)
    world.forger = tenant, program
    until_frozen(world, tenant, 120, nothing)


def test_who_moves_on_by_a_new_process_for_each_look_is_frozen(world: World) -> None:
    tenant = begin(world)
    last: list[Program] = []

    def move_on() -> None:
        program = apart(world, tenant)
        world._has(program, OVER)
        for gone in last:
            del world.clients[gone.process.pid], world.there[gone.process.pid]
        last[:] = [program]

    until_frozen(world, tenant, 120, move_on)


def test_who_is_far_above_is_ended_where_the_operator_chose_so(world: World, node: Node) -> None:
    tenant = begin(world)
    node.overrides.set(tenant.entry.id, {"on-over": "kill"})
    world._has(apart(world, tenant), OVER)
    for _ in range(60):
        world.look()
    assert [action for action, _ in world.done][:3] == ["warn", "freeze", "kill"]
    assert {key for _, key in world.done} == {tenant.key}
    assert ("kill", tenant.key) in world.recorder.calls


def test_the_operators_word_for_one_container_is_above_the_nodes(world: World, node: Node) -> None:
    tenant = begin(world)
    node.overrides.set(tenant.entry.id, {"on-over": "warn"})
    world._has(apart(world, tenant), OVER)
    for _ in range(60):
        world.look()
    assert world.done == [("warn", tenant.key)]
    assert world.recorder.calls == []


def test_where_nobody_knows_what_a_context_takes_it_is_warned_at_the_most(
    world: World, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    tenant = begin(world)
    monkeypatch.setattr(node.loaded().contexts, "bytes_of", lambda _: 0)
    world.tenants[:] = [tenant]
    world._has(apart(world, tenant), OVER)
    for _ in range(60):
        world.look()
    assert ("warn", tenant.key) in world.done
    assert "freeze" not in {action for action, _ in world.done}


def test_who_comes_down_goes_on(world: World) -> None:
    tenant = begin(world)
    program = apart(world, tenant)
    world._has(program, OVER)
    until_frozen(world, tenant, 16, nothing)
    world._has(program, -OVER)
    for _ in range(8):
        world.look()
    assert world.recorder.calls == [("hold", tenant.key), ("release", tenant.key)]


def test_who_cannot_be_frozen_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = begin(world)
    tried: list[str] = []

    def refuse(key: str, _by: str, why: str) -> None:
        assert why.endswith(" that it may on card 0")
        tried.append(key)
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(world.recorder, "hold", refuse)
    world._has(apart(world, tenant), OVER)
    for _ in range(120):
        world.look()
    assert 2 < len(tried) < 12  # some seconds apart
    assert set(tried) == {tenant.key}


def test_who_was_let_go_on_by_an_operator_has_a_minute(world: World, node: Node) -> None:
    tenant = begin(world)
    world._has(apart(world, tenant), OVER)
    until_frozen(world, tenant, 16, nothing)
    world.done.clear()
    node.audit.resumed(tenant.key)
    began = world.now_ns
    while not world.done:
        world.look()
    assert world.done == [("freeze", tenant.key)]
    assert world.now_ns - began >= 60 * 10**9
    calls = [call for call, _ in world.recorder.calls]
    assert calls == ["hold", "release", "hold"]


def test_what_is_shown_of_who_is_above_is_why_and_what_to_do(world: World, node: Node) -> None:
    tenant = begin(world)
    world.tenants[:] = [tenant]
    world._has(apart(world, tenant), OVER)
    until_frozen(world, tenant, 16, nothing)
    row = tenant_row(tenant.entry, node)
    assert (row["on_over"], row["cards"][0]["audit"]) == ("freeze", "frozen")
    [warning] = [one for one in row["warnings"] if "goes round" in one]
    assert "gpushare set tenant-a --memory SIZE, gpushare resume tenant-a" in warning
    tenant.pages.write_limit(0, 2 * OVER, 2 * OVER)
    enough = tenant_row(tenant.entry, node)["warnings"]  # though nobody has looked again
    assert not [one for one in enough if "goes round" in one]
    tenant.pages.write_limit(0, tenant.limit, tenant.limit)
    node.overrides.set(tenant.entry.id, {"on-over": "observe"})
    for _ in range(3):
        world.look()
    assert not [one for one in tenant_row(tenant.entry, node)["warnings"] if "goes round" in one]
    assert world.recorder.calls[-1] == ("release", tenant.key)


def test_a_neighbour_that_lacks_its_promise_is_reason_enough(world: World, node: Node) -> None:
    """For who is a little above, and to be ended: nobody is for what another only says."""
    guilty, victim = begin(world), world.tenants[1]
    world.tenants[:] = [guilty, victim]
    node.overrides.set(guilty.entry.id, {"on-over": "kill"})
    program = apart(world, guilty)
    for _ in range(30):
        node.audit._lacking = {(victim.key, CARD): world.now_ns}
        sample = world.look()[guilty.key, CARD].sample
        assert sample is None or sample.lacks
    assert world.done == []
    may = sample.may_bytes if sample else 0
    world._has(program, may + may // 12 + 2 * CONTEXT - program.bytes)
    world.tenants[:] = [victim]
    for _ in range(12):
        node.audit._lacking = {(victim.key, CARD): world.now_ns}
        world.look()
    assert world.done[:3] == [(step, guilty.key) for step in ("warn", "freeze", "kill")]


def test_tenants_that_ask_for_a_look_without_an_end_do_not_get_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for _ in range(3):
        node.audit.hurry.set()
        assert node.audit.wait()
    assert not node.audit.hurry.is_set()
    assert all(0 < seconds <= 0.05 for seconds in slept[1:])
