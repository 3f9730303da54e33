# SPDX-License-Identifier: Apache-2.0
"""A refusal in a pod's events says what is available and would fit, and names no other user."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.placement.model import NonTenantProcess
from gpushare.daemon.state import CardUsage, DaemonState, UsageView
from gpushare.daemon.store.record import CardAllocation
from gpushare.errors import UserError
from gpushare.quota.errors import QuotaError

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fakes import GIB

#: Of another namespace, of this machine and of another user: none of it is a pod's to know.
SECRETS = ("payroll", "salary", "secret", "Xorg", "4711", "host-99", "alice")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonState]:
    driver = fakes.FakeDriver(fakes.card(0), fakes.card(1))
    with fakes.node(tmp_path, driver) as made:
        fill(made)
        yield made


def fill(node: DaemonState, cores: int = 90) -> None:
    """Have both cards nearly full, with 23 and 11 GiB available."""
    for index, gib in ((0, 100), (1, 120)):
        uuid = fakes.card(index).uuid
        for number, name in enumerate(("payroll/salary-0/secret", "alice")):
            key = f"{index}{number}" * 8
            part = CardAllocation(uuid, (gib - 20 if number == 0 else 17) * GIB, cores // 2)
            record = replace(fakes.entry(key), id=f"host-99{key}", name=name, allocations=(part,))
            node.ledger.add(replace(record, policy="fixed-share", namespace="payroll"))
    node.observed.usage = UsageView(
        cards={
            fakes.card(index).uuid: CardUsage(
                non_tenants=(NonTenantProcess(4711, "Xorg", 20 * GIB),), non_tenant_bytes=20 * GIB
            )
            for index in (0, 1)
        }
    )


REQUESTS: dict[str, Mapping[str, str]] = {
    "memory": {"gpushare.io/memory": "100GiB"},
    "percent": {"gpushare.io/memory-percent": "90"},
    "cores": {"gpushare.io/memory": "1GiB", "gpushare.io/cores": "50"},
    "both": {"gpushare.io/memory": "100GiB", "gpushare.io/cores": "50"},
    "two cards": {"gpushare.io/memory": "20GiB", "gpushare.io/count": "2"},
    "whole": {"gpushare.io/count": "1"},
    "named": {"gpushare.io/memory": "100GiB", "gpushare.io/devices": "1"},
    "burst": {"gpushare.io/memory": "100GiB", "gpushare.io/memory-limit": "120GiB"},
}


def refusal(container: BundleToCreate, node: DaemonState) -> str:
    with pytest.raises((UserError, QuotaError)) as caught:
        container.create(node)
    return str(caught.value)


def names_nobody(text: str) -> bool:
    # No quota of others either: 80, 100 and 17 GiB.
    return not any(secret in text for secret in SECRETS) and not re.search(r"\b(80|17)\b", text)


@pytest.mark.parametrize("what", REQUESTS)
def test_a_pods_refusal_names_no_other_pod(node: DaemonState, tmp_path: Path, what: str) -> None:
    container = ContainerdBundles(tmp_path, REQUESTS[what]).container("train")
    text = refusal(container, node)
    assert names_nobody(text), text


@pytest.mark.parametrize("what", ["memory", "percent", "both", "two cards", "named"])
def test_the_memory_that_a_refusal_suggests_fits(
    node: DaemonState, tmp_path: Path, what: str
) -> None:
    asked = dict(REQUESTS[what])
    text = refusal(ContainerdBundles(tmp_path / "1", asked).container("train"), node)
    [(size, cores)] = re.findall(
        r"; at most ([0-9.]+) GiB(?: and ([0-9]+) % of the compute)? would fit$", text
    )
    assert "available" in text
    asked.pop("gpushare.io/memory-percent", None)
    if cores:
        asked["gpushare.io/cores"] = cores
    asked["gpushare.io/memory"] = f"{size}GiB"
    made = ContainerdBundles(tmp_path / "2", asked).container("train").create(node)
    assert made["mode"] == "shared"


def test_the_cores_that_a_refusal_suggests_fit(node: DaemonState, tmp_path: Path) -> None:
    asked = dict(REQUESTS["cores"])
    text = refusal(ContainerdBundles(tmp_path / "1", asked).container("train"), node)
    [cores] = re.findall(r"; at most ([0-9]+) % of the compute would fit$", text)
    asked["gpushare.io/cores"] = cores
    assert (
        ContainerdBundles(tmp_path / "2", asked).container("train").create(node)["mode"] == "shared"
    )


def test_refusals_name_no_tenant_of_exclusive_and_full_cards(
    node: DaemonState, tmp_path: Path
) -> None:
    whole = CardAllocation(fakes.card(0).uuid, 140 * GIB, 100, whole=True)
    node.ledger.release("00" * 8)
    node.ledger.release("01" * 8)
    node.ledger.add(replace(fakes.entry("e" * 16), name="payroll/x/secret", allocations=(whole,)))
    node.config = replace(node.config, max_tenants=2)
    text = refusal(
        ContainerdBundles(tmp_path, {"gpushare.io/memory": "1GiB"}).container("train"), node
    )
    assert names_nobody(text), text
    assert "card 0 is allocated exclusively" in text
    assert "card 1 has 2 tenants of at most 2" in text


ON_DOCKER = "io.containerd.runtime.v2.task/moby/4f1c"
BIG = "GPUSHARE_MEMORY=100GiB"


def test_on_a_plain_docker_host_the_refusal_names_the_other_containers(
    node: DaemonState, tmp_path: Path
) -> None:
    text = refusal(BundleToCreate(tmp_path / ON_DOCKER, BIG), node)
    assert "payroll/salary-0/secret 80" in text
    assert "by pid 4711 Xorg" in text
