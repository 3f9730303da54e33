# SPDX-License-Identifier: Apache-2.0
"""Real containers that go round the interposer: they are seen, and held to what they may have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.bundle import Bundle, busybox
from tests.system.waiting import wait_until

from .conftest import end, ended, is_frozen, ready, steps

GIB = 1 << 30
#: The driver itself, where the filter libraries have it from.
PRIVATE = "/.gpushare/driver/libcuda.so.1"
AROUND = {
    "by its private path": (PROGRAM, "--library", PRIVATE),
    "with an empty environment": ("/bin/busybox", "env", "-i", PROGRAM, "--library", PRIVATE),
}


def made(stack: Stack, args: Sequence[str], files: dict[str, bytes] | None = None) -> Bundle:
    return Bundle(stack, quota={"memory": "2GiB"}, args=args, files={**busybox(), **(files or {})})


@contextmanager
def neighbour(stack: Stack) -> Iterator[None]:
    """Have another container at work, that is as it was at the end of the block."""
    bundle = made(stack, (PROGRAM,))
    with bundle.started() as tenant:
        assert tenant.ask(f"alloc {GIB}")["code"] == 0
        yield
        found = bundle.tenant
        assert (found["interventions"], found["warnings"]) == ([], [])
        assert tenant.ask(f"alloc {GIB // 4}")["code"] == 0
        assert tenant.ask(f"alloc {2 * GIB}")["code"] == 2
    assert steps(bundle) == []
    bundle.remove()


@pytest.mark.gate
@pytest.mark.parametrize("args", AROUND.values(), ids=AROUND)
def test_the_driver_that_is_loaded_past_the_filter_is_frozen(
    audited: Stack, args: Sequence[str]
) -> None:
    bundle = made(audited, args)
    with neighbour(audited), bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask(f"alloc {6 * GIB}")["code"] == 0  # nothing refuses it
        wait_until(lambda: steps(bundle) == ["warned", "frozen"])
        assert is_frozen(bundle)
        found = bundle.tenant
        assert found["cards"][0]["over_quota_state"] == "frozen"
        assert any("bypasses the interposer library" in one for one in found["warnings"])
        why = audited.client.why(bundle.id)["advice"]
        for said in (found["warnings"], why):
            assert any("and not the interposer library" in one for one in said)
        end(bundle, tenant)
    bundle.remove()


def test_a_static_program_is_ended_where_the_operator_chose_so(
    audited: Stack, taker: bytes
) -> None:
    """It has the driver within it: there is no library that could be in its way."""
    args = ("/bin/busybox", "sh", "-c", f"read go; exec /bin/taker {6 * GIB}")
    bundle = made(audited, args, {"/bin/taker": taker})
    with neighbour(audited), bundle.run() as tenant:
        wait_until(lambda: (bundle.row() or {"state": ""})["state"] == "bound")
        now = audited.client.set(bundle.id, over_quota_action="kill")
        assert now["over_quota_action"] == "kill"
        tenant.tell("go")
        assert tenant.start()["code"] == 0
        wait_until(lambda: ended(tenant))
        wait_until(lambda: steps(bundle) == ["warned", "frozen", "killed"])
    bundle.remove()


@pytest.fixture
def alone() -> Iterator[Stack]:
    """A daemon of its own: after a shortfall it withholds burst memory from those that follow."""
    with Stack() as made:
        yield ready(made)


def test_an_allocation_within_quota_waits_until_the_container_over_quota_is_killed(
    alone: Stack,
) -> None:
    """It bypasses the library, takes all memory that is left, and is to be killed for it."""
    thief = Bundle(alone, quota={"memory": "2GiB"}, args=(PROGRAM, "--library", PRIVATE))
    victim = Bundle(alone, quota={"memory": "4GiB"})
    with victim.run() as robbed, thief.run() as robber:
        assert robbed.start()["code"] == 0
        assert robbed.ask(f"alloc {GIB}")["code"] == 0
        assert robber.start()["code"] == 0
        alone.client.set(thief.id, over_quota_action="kill")
        free = robber.ask("info")["free"]
        assert robber.ask(f"alloc {free - GIB}")["code"] == 0
        # Each is asked for two seconds; the machine may be slower than that today.
        wait_until(lambda: bool(robbed.ask(f"alloc {2 * GIB}")["code"] == 0))
        wait_until(lambda: ended(robber))
        info = robbed.ask("info")
        assert info["total"] == 4 * GIB
        assert info["total"] - info["free"] >= 3 * GIB
        card = alone.client.why(victim.id)["cards"][0]
        assert card["shortfall"] is not None
        assert card["shortfall"]["bytes"] == 2 * GIB
    wait_until(lambda: steps(thief)[-1:] == ["killed"])
    assert steps(victim) == []
    assert "memory-shortfall-reported" in {line["event"] for line in alone.events()}
    for bundle in (victim, thief):
        bundle.remove()
