# SPDX-License-Identifier: Apache-2.0
"""A real container that holds memory and does nothing is reported, paused and stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from gpushare.client import Client
from gpushare.protocol import TenantStatus
from gpushare.verify import ProbeTenant
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

GIB = 1 << 30


@pytest.fixture
def own() -> Iterator[Stack]:
    with Stack() as made:
        made.start_daemon()
        yield made


def choose(stack: Stack, action: str, after: str = "1s") -> None:
    said = yaml.safe_load(stack.config.read_text())
    said["idle"] = {"after": after, "action": action}
    said["timing"] = {**said.get("timing", {}), "reconcile_interval_seconds": 0.2}
    stack.config.write_text(yaml.safe_dump(said))
    Client(stack.socket).reload()


def row(stack: Stack, bundle: Bundle) -> TenantStatus | None:
    return next((one for one in Client(stack.socket).tenants() if one["id"] == bundle.id), None)


@contextmanager
def holding(bundle: Bundle) -> Iterator[ProbeTenant]:
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask(f"alloc {GIB}")["code"] == 0
        yield tenant


def interventions(stack: Stack, bundle: Bundle) -> list[str]:
    found = row(stack, bundle)
    return [] if found is None else [one["by"] for one in found["interventions"]]


def test_an_idle_container_is_warned_and_then_paused_until_resume(own: Stack) -> None:
    bundle = Bundle(own, quota={"memory": "4GiB", "cores": "30"})
    client = Client(own.socket)
    with holding(bundle):
        choose(own, "warn")
        wait_until(lambda: (row(own, bundle) or {"idle_since": None})["idle_since"] is not None)
        found = row(own, bundle)
        assert found is not None
        assert "does not use its cards" in found["warnings"][0]
        assert client.why(bundle.id)["idle_since"] == found["idle_since"]
        client.pause(bundle.id, "by hand")
        wait_until(lambda: (row(own, bundle) or {"idle_since": 0})["idle_since"] is None)
        choose(own, "pause")
        client.resume(bundle.id)
        wait_until(lambda: interventions(own, bundle) == ["idle"])
        paused = row(own, bundle)
        assert paused is not None
        assert paused["interventions"][0]["reason"].endswith("(idle.action: pause)")
        client.resume(bundle.id)
    frozen = [
        one for one in client.history(bundle.id) if one["event"].endswith(("frozen", "thawed"))
    ]
    assert [(one["event"], one["fields"]["by"]) for one in frozen] == [
        ("tenant-frozen", "operator"),
        ("tenant-thawed", "operator"),
        ("tenant-frozen", "idle"),
        ("tenant-thawed", "operator"),
    ]


def test_a_container_is_idle_after_its_own_time_and_after_the_operators(own: Stack) -> None:
    quota = {"memory": "4GiB", "idle-after": "2s"}
    bundle = Bundle(own, quota=quota)
    client = Client(own.socket)
    choose(own, "report", after="never")
    with holding(bundle):
        wait_until(lambda: (row(own, bundle) or {"idle_since": None})["idle_since"] is not None)
        changed = client.set(bundle.id, idle_after="120m")
        assert changed["quota"]["idle-after"] == "2h operator"
        wait_until(lambda: (row(own, bundle) or {"idle_since": 0})["idle_since"] is None)
        assert client.reset(bundle.id)["quota"]["idle-after"] == "2s env"
        wait_until(lambda: (row(own, bundle) or {"idle_since": None})["idle_since"] is not None)


def test_an_idle_container_is_stopped(own: Stack) -> None:
    bundle = Bundle(own, quota={"memory": "4GiB", "cores": "30"})
    with holding(bundle):
        choose(own, "kick")
        wait_until(lambda: row(own, bundle) is None)
    events = Client(own.socket).history(bundle.id)
    [stopped] = [one for one in events if one["event"] == "tenant-stop-requested"]
    assert stopped["fields"]["by"] == "idle"
