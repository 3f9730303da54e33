# SPDX-License-Identifier: Apache-2.0
"""A real container that holds memory and does nothing is reported, then paused."""

from __future__ import annotations

from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

GIB = 1 << 30
OFTEN = {"reconcile_interval_seconds": 0.2}


def interventions(bundle: Bundle) -> list[str]:
    return [one["by"] for one in bundle.tenant["interventions"]]


def test_an_idle_container_is_warned_and_then_paused_until_resume(own: Stack) -> None:
    bundle = Bundle(own, quota={"memory": "4GiB", "cores": "30"})
    with bundle.started() as tenant:
        assert tenant.ask(f"alloc {GIB}")["code"] == 0
        own.configure(idle={"after": "1s", "action": "warn"}, timing=OFTEN)
        wait_until(lambda: bundle.tenant["idle_since"] is not None)
        wait_until(lambda: bool(bundle.tenant["warnings"]))
        assert "does not use its cards" in bundle.tenant["warnings"][0]
        own.client.pause(bundle.id, "by hand")
        wait_until(lambda: bundle.tenant["idle_since"] is None)
        own.configure(idle={"after": "1s", "action": "pause"})
        own.client.resume(bundle.id)
        wait_until(lambda: interventions(bundle) == ["idle"])
        own.client.resume(bundle.id)
    frozen = [
        (one["event"], one["fields"]["by"])
        for one in own.client.history(bundle.id)
        if one["event"].endswith(("frozen", "thawed"))
    ]
    assert frozen == [
        ("tenant-frozen", "operator"),
        ("tenant-thawed", "operator"),
        ("tenant-frozen", "idle"),
        ("tenant-thawed", "operator"),
    ]
