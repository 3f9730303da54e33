# SPDX-License-Identifier: Apache-2.0
"""Refusals: the totals of a namespace, the key and the fix, and no other user's name to a pod."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import config
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.observed import CardUsage, UsageView
from gpushare.daemon.placement.model import NonTenantProcess
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.store.record import CardAllocation
from gpushare.errors import UserError
from gpushare.quota.errors import QuotaError

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import ME

#: Of another namespace, of this machine and of another user: none of it is a pod's to know.
SECRETS = ("payroll", "salary", "secret", "Xorg", "4711", "host-99", "alice")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    driver = fakes.FakeDriver(fakes.card(0), fakes.card(1))
    with fakes.node(tmp_path, driver) as made:
        fill(made)
        yield made


def fill(node: FakeDaemon, cores: int = 90) -> None:
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


def refusal(container: BundleToCreate, node: FakeDaemon) -> str:
    with pytest.raises((UserError, QuotaError)) as caught:
        container.create(node)
    return str(caught.value)


def names_nobody(text: str) -> bool:
    # No quota of others either: 80, 100 and 17 GiB.
    return not any(secret in text for secret in SECRETS) and not re.search(r"\b(80|17)\b", text)


@pytest.mark.parametrize("what", REQUESTS)
def test_a_pods_refusal_names_no_other_pod(node: FakeDaemon, tmp_path: Path, what: str) -> None:
    container = ContainerdBundles(tmp_path, REQUESTS[what]).container("train")
    text = refusal(container, node)
    assert names_nobody(text), text


@pytest.mark.parametrize("what", ["memory", "percent", "both", "two cards", "named"])
def test_the_memory_that_a_refusal_suggests_fits(
    node: FakeDaemon, tmp_path: Path, what: str
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


def test_refusals_name_no_tenant_of_exclusive_and_full_cards(
    node: FakeDaemon, tmp_path: Path
) -> None:
    whole = CardAllocation(fakes.card(0).uuid, 140 * GIB, 100, whole=True)
    node.ledger.release("00" * 8)
    node.ledger.release("01" * 8)
    node.ledger.add(replace(fakes.entry("e" * 16), name="payroll/x/secret", allocations=(whole,)))
    node.node.config = replace(node.node.config, max_tenants=2)
    text = refusal(
        ContainerdBundles(tmp_path, {"gpushare.io/memory": "1GiB"}).container("train"), node
    )
    assert names_nobody(text), text
    assert "card 0 is allocated exclusively" in text
    assert "card 1 has 2 tenants of at most 2" in text


ON_DOCKER = "io.containerd.runtime.v2.task/moby/4f1c"
BIG = "GPUSHARE_MEMORY=100GiB"


def test_on_a_plain_docker_host_the_refusal_names_the_other_containers(
    node: FakeDaemon, tmp_path: Path
) -> None:
    text = refusal(BundleToCreate(tmp_path / ON_DOCKER, BIG), node)
    assert "payroll/salary-0/secret 80" in text
    assert "by pid 4711 Xorg" in text


FILE = Path("/etc/gpushare/gpushare.yaml")
TOTAL = """\
namespaces:
  team:
    max_per_node:
      memory: 20GiB
      cores: 120
      cards: 2
      tenants: 3
      models:
        A100: {memory: 6GiB}
"""
MODELS = ("H200", "H200", "A100-PCIE-40GB")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            [{"memory": "8GiB"}, {"memory": "8GiB"}, {"memory": "5GiB"}],
            (
                "no card can be allocated for 5 GiB: namespace team would have 21 GiB of all cards "
                "together, above 20 GiB (namespaces.team.max_per_node.memory, "
                "/etc/gpushare/gpushare.yaml:4): team/job-1/train-0 8 GiB, team/job-1/train-1 8 "
                "GiB; request less (pod annotation gpushare.io/memory) or see gpushare ps"
            ),
        ),
        (
            [{"memory": "1GiB", "cores": "60"}] * 2 + [{"memory": "1GiB", "cores": "1"}],
            "would have 121 % of the compute of all cards together, above 120 % of the compute (",
        ),
        (
            [{"memory": "1GiB", "devices": "0,1"}, {"memory": "1GiB", "devices": "2"}],
            "/etc/gpushare/gpushare.yaml:6): team/job-1/train-0 on 0 1; see gpushare ps",
        ),
        ([{"memory": "1GiB"}] * 4, "namespace team would have 4 tenants, above 3 tenants"),
        (
            [{"memory": "4GiB", "allow": "A100"}, {"memory": "4GiB", "devices": "2"}],
            "8 GiB of A100, above 6 GiB (namespaces.team.max_per_node.models.A100.memory, ",
        ),
        ([{"memory": "8GiB"}, {"memory": "8GiB"}, {"memory": "4GiB"}], ""),
    ],
)
def test_the_total_of_a_namespace_over_all_cards_is_bounded(
    tmp_path: Path, asked: list[dict[str, str]], told: str
) -> None:
    cards = [fakes.card(index, 140, model) for index, model in enumerate(MODELS)]
    with fakes.node(tmp_path, FakeDriver(*cards), config.parse(TOTAL, FILE)) as made:

        def create(pod: str, namespace: str = "team", **quota: str) -> None:
            keys = {f"gpushare.io/{key}": text for key, text in quota.items()}
            engine = ContainerdBundles(tmp_path, keys, pod=pod, namespace=namespace)
            assert engine.container(f"train-{pod}").create(made)["mode"] == "shared"

        for number, one in enumerate(asked):
            if told and number + 1 == len(asked):
                with pytest.raises(NoRoom, match=re.escape(told)):
                    create(str(number), **one)
            else:
                create(str(number), **one)
        keys = list(made.ledger.entries)
        create("x", "other", memory="30GiB")
        for key in keys:
            release.release_tenant(key, made, "it ended")
        create("y", memory="20GiB")


def test_a_user_has_a_total_too(tmp_path: Path) -> None:
    text = "users: {max_per_node: {memory: 6GiB}}\n"
    user = replace(ME, rootless=True, uid=65534)
    with fakes.node(tmp_path, FakeDriver(), config.parse(text, FILE)) as made:
        open_tenant(user, {"memory": "4GiB"}, made, made.room)
        with pytest.raises(
            NoRoom, match=r"user 65534 would have 8 GiB .*users.max_per_node.memory"
        ):
            open_tenant(user, {"memory": "4GiB"}, made, made.room)


@pytest.mark.parametrize(
    ("asked", "fix"),
    [
        ({"memory-percent": "99"}, "less (pod annotation gpushare.io/memory-percent) or see"),
        ({"memory": "4GiB", "cores": "90"}, "request less (pod annotation gpushare.io/cores) or"),
        ({"memory": "4GiB", "allow": "T4"}, "allow; change allow (pod annotation gpushare.io/al"),
        ({"memory": "4GiB", "deny": "h200"}, "card 0 (H200) is in deny; change deny (pod annot"),
    ],
)
def test_a_refusal_names_the_key_and_the_fix(
    tmp_path: Path, asked: dict[str, str], fix: str
) -> None:
    with fakes.node(tmp_path) as made:
        open_tenant(ME, {"memory": "4GiB", "cores": "20"}, made, made.room)
        annotations = {f"gpushare.io/{key}": text for key, text in asked.items()}
        with pytest.raises(NoRoom, match=re.escape(fix)) as refused:
            ContainerdBundles(tmp_path, annotations).container("train").create(made)
        assert ("request less" in str(refused.value)) == (not {"allow", "deny"} & asked.keys())
