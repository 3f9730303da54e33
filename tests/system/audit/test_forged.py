# SPDX-License-Identifier: Apache-2.0
"""Containers that forge what they claim of themselves: it excuses none of what they take."""

from __future__ import annotations

from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

from .conftest import end, steps

GIB = 1 << 30


def forging(stack: Stack, forger: bytes, what: str, size: int, **quota: str) -> Bundle:
    args = ("/bin/forger", what, str(size))
    return Bundle(
        stack, quota={"memory": "4GiB", **quota}, args=args, files={"/bin/forger": forger}
    )


def test_a_claim_of_burst_memory_is_no_entitlement_to_it(audited: Stack, forger: bytes) -> None:
    """It claims to have used what is allocated to its neighbour now, and takes it."""
    thief = forging(audited, forger, "burst", 60 * GIB, **{"memory-limit": "60GiB"})
    victim = Bundle(audited, quota={"memory": "110GiB"})
    with thief.run() as taking:
        assert taking.start()["code"] == 0
        assert taking.answer("ready")["code"] == 0
        with victim.run() as robbed:
            assert robbed.start()["code"] == 0
            assert taking.answer("taken")["code"] == 0
            wait_until(lambda: steps(thief) == ["warned", "frozen"])
            assert steps(victim) == []
        end(thief, taking)
    for bundle in (victim, thief):
        bundle.remove()


def test_a_sawtooth_under_forged_imports_is_frozen(audited: Stack, forger: bytes) -> None:
    bundle = forging(audited, forger, "sawtooth", 60 * GIB)
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.answer("taken")["code"] == 0
        wait_until(lambda: steps(bundle)[:2] == ["warned", "frozen"])
        end(bundle, tenant)
    bundle.remove()
