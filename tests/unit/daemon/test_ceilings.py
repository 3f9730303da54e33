# SPDX-License-Identifier: Apache-2.0
"""The node's policy, from the file to what a container, or a user's command, is given."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import config
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.service.node_operations import status_row
from gpushare.daemon.state import DaemonState
from gpushare.quota.errors import QuotaError

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fakes import GIB, FakeDriver
from .operations import ME, entry_of

FILE = Path("/etc/gpushare/gpushare.yaml")
NOBODY = replace(ME, rootless=True, uid=65534)
MEMORY = {"gpushare.io/memory": "4GiB"}


@contextmanager
def node(folder: Path, text: str, cards: int = 1) -> Iterator[DaemonState]:
    driver = FakeDriver(*(fakes.card(index) for index in range(cards)))
    with fakes.node(folder, driver, config.parse(text, FILE)) as made:
        yield made


def annotated(folder: Path, **asked: str) -> BundleToCreate:
    annotations = {f"gpushare.io/{key.replace('_', '-')}": text for key, text in asked.items()}
    return BundleToCreate(folder, annotations=annotations)


CEILINGS = """\
max_per_request:
  memory: 8GiB
  cores: 30
namespaces:
  big:
    max_per_request: {memory: 64GiB}
  dev-x:
    max_per_request:
      count: 1
  "dev-*":
    max_per_request: {memory: 2GiB}
    defaults: {memory: 16GiB}
    trust: {env: request}
"""


def test_a_request_above_a_maximum_is_refused_with_key_value_maximum_and_line(
    tmp_path: Path,
) -> None:
    with node(tmp_path, CEILINGS) as made:
        container = annotated(tmp_path / "b", memory="9GiB")
        before = container.text()
        with pytest.raises(QuotaError) as refused:
            container.create(made)
        assert str(refused.value) == (
            "annotation gpushare.io/memory=9GiB: exceeds the maximum, 8GiB "
            "(max_per_request.memory, "
            "/etc/gpushare/gpushare.yaml:2). Request 8GiB or less."
        )
        assert container.text() == before
        assert not made.ledger.entries


def test_a_namespace_may_trust_the_environment_otherwise(tmp_path: Path) -> None:
    with node(tmp_path, CEILINGS) as made:
        for namespace, given in (("dev-y", "shared"), ("team", "none")):
            engine = ContainerdBundles(tmp_path, {}, pod=namespace, namespace=namespace)
            container = engine.container(f"train-{namespace}", "GPUSHARE_MEMORY=1GiB")
            assert container.create(made, "weak")["mode"] == given


def test_an_override_may_exceed_the_ceiling_and_stays(tmp_path: Path) -> None:
    text = "max_per_request: {memory: 8GiB, memory_percent: 10}\n"
    with node(tmp_path, text) as made:
        container = annotated(tmp_path / "b", memory="8GiB")
        key = container.create(made)["key"]
        set_quota(made.ledger.entries[key], {"memory": "64GiB"}, made)
        release.release_tenant(key, made, "test")
        container.create(made)
        entry = made.ledger.entries[key]
        assert entry.allocations[0].memory_bytes == 64 * GIB


@pytest.mark.parametrize(
    ("text", "asked", "told"),
    [
        (
            "max_per_request: {memory: 8GiB}\n",
            {"memory_percent": "50"},
            "card 0 would give 70 GiB, above the ceiling 8 GiB (max_per_request.memory, ",
        ),
        (
            "max_per_request: {memory_percent: 5}\n",
            {"memory": "8GiB"},
            "card 0 would give 8 GiB, above the ceiling 7 GiB (max_per_request.memory_percent, ",
        ),
        (
            "max_per_request: {memory: 8GiB}\n",
            {"memory_percent": "1", "memory_limit": "8GiB"},
            "",
        ),
        (
            "max_per_request: {memory_percent: 5, memory_limit: 7GiB}\n",
            {"memory_percent": "5", "memory_limit": "7GiB"},
            "",
        ),
    ],
)
def test_a_ceiling_in_the_other_unit_is_enforced_per_card(
    tmp_path: Path, text: str, asked: dict[str, str], told: str
) -> None:
    with node(tmp_path, text) as made:
        container = annotated(tmp_path / "b", **asked)
        if not told:
            assert container.create(made)["mode"] == "shared"
            return
        with pytest.raises(NoRoom, match=re.escape(told)):
            container.create(made)
        assert not made.ledger.entries


def test_a_request_for_all_cards_obeys_the_ceiling_of_their_number(tmp_path: Path) -> None:
    hook = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["hook", "prestart"]}
    env = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=all", "GPUSHARE_MEMORY=1GiB")
    for count, given in ((1, False), (2, True)):
        with node(tmp_path / str(count), f"max_per_request: {{count: {count}}}\n", cards=2) as made:
            hooks = {"prestart": [hook]}
            container = BundleToCreate(tmp_path / f"b{count}", *env, hooks=hooks)
            if given:
                assert container.create(made)["mode"] == "shared"
                continue
            with pytest.raises(
                NoRoom, match=r"all 2 cards .* ceiling 1 \(max_per_request.count, .*:1\)"
            ):
                container.create(made)


# --- together ---


TOGETHER = """\
namespaces:
  team:
    max_per_card:
      memory: 10GiB
      cores: 50
      tenants: 3
"""


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (
            {"memory": "8GiB"},
            {"memory": "3GiB"},
            "would give namespace team 11 GiB in all, above 10 GiB (namespaces.team.max_per_card",
        ),
        (
            {"memory": "2GiB", "memory-limit": "8GiB"},
            {"memory": "3GiB"},
            "would give namespace team 11 GiB in all, above 10 GiB",
        ),
        (
            {"memory": "1GiB", "cores": "30"},
            {"memory": "1GiB", "cores": "30"},
            (
                "would give namespace team 60 % of its compute in all, above 50 % "
                "(namespaces.team.max_per_card"
            ),
        ),
        ({"memory": "8GiB"}, {"memory": "2GiB"}, ""),
    ],
)
def test_the_maximum_of_a_namespace_holds_on_each_card(
    tmp_path: Path, first: dict[str, str], second: dict[str, str], told: str
) -> None:
    with node(tmp_path, TOGETHER) as made:
        for pod, asked in (("one", first), ("two", second)):
            annotations = {f"gpushare.io/{key}": text for key, text in asked.items()}
            container = ContainerdBundles(tmp_path, annotations, pod=pod).container(f"train-{pod}")
            if pod == "one" or not told:
                assert container.create(made)["mode"] == "shared"
                continue
            with pytest.raises(NoRoom, match=re.escape(told)):
                container.create(made)
        elsewhere = ContainerdBundles(tmp_path, MEMORY, pod="three", namespace="other").container(
            "train-3"
        )
        assert elsewhere.create(made)["mode"] == "shared"


def test_an_ended_tenant_no_longer_counts(tmp_path: Path) -> None:
    with node(tmp_path, TOGETHER) as made:
        keys: list[str] = []
        for pod in ("a", "b", "c", "d"):
            engine = ContainerdBundles(tmp_path, {"gpushare.io/memory": "1GiB"}, pod=pod)
            container = engine.container(f"train-{pod}")
            if pod == "d":
                with pytest.raises(NoRoom, match="namespace team 4 parts in all, above 3"):
                    container.create(made)
                release.release_tenant(keys[0], made, "test")
            keys.append(container.create(made)["key"])


# --- users ---


def test_a_user_may_not_reserve_more_than_half_of_a_card(tmp_path: Path) -> None:
    with node(tmp_path, "") as made:
        with pytest.raises(NoRoom) as refused:
            open_tenant(NOBODY, {"memory": "100GiB"}, made)
        assert (
            "card 0 would give user 65534 100 GiB in all, above 70 GiB "
            "(users.max_per_card.memory_percent, gpushare default)"
        ) in str(refused.value)
        open_tenant(NOBODY, {"memory": "40GiB"}, made)
        with pytest.raises(NoRoom, match="user 65534 80 GiB in all, above 70 GiB"):
            open_tenant(NOBODY, {"memory": "40GiB"}, made)
        with pytest.raises(NoRoom, match="user 65534 120 GiB in all, above 70 GiB"):
            open_tenant(NOBODY, {"memory": "1GiB", "memory-limit": "80GiB"}, made)
        # Another user has a half of his own, and root is the operator.
        open_tenant(replace(NOBODY, uid=1000), {"memory": "40GiB"}, made)
        open_tenant(ME, {"memory": "50GiB"}, made)


def test_a_user_may_not_take_precedence_over_containers(tmp_path: Path) -> None:
    with node(tmp_path, "") as made:
        with pytest.raises(QuotaError, match=r"users.max_per_request.classes, gpushare default"):
            open_tenant(NOBODY, {"memory": "1GiB", "class": "online"}, made)
        with pytest.raises(QuotaError, match=r"users.max_per_request.priority, gpushare default"):
            open_tenant(NOBODY, {"memory": "1GiB", "priority": "4"}, made)
        open_tenant(NOBODY, {"memory": "1GiB", "priority": "9"}, made)
        open_tenant(ME, {"memory": "1GiB", "class": "online"}, made)
    with node(tmp_path, "users: {max_per_request: {classes: [online, offline]}}\n") as made:
        open_tenant(NOBODY, {"memory": "1GiB", "class": "online"}, made)


def test_a_request_of_root_obeys_the_node_s_ceilings_but_set_does_not(tmp_path: Path) -> None:
    with node(tmp_path, "max_per_request: {memory: 2GiB}\n") as made:
        with pytest.raises(QuotaError, match=r"--memory=3GiB: exceeds the maximum, 2GiB"):
            open_tenant(ME, {"memory": "3GiB"}, made)
        entry = entry_of(made, open_tenant(ME, {"memory": "1GiB"}, made))
        assert set_quota(entry, {"memory": "3GiB"}, made).allocations[0].memory_bytes == 3 * GIB


def test_a_changed_policy_is_reported_until_it_is_reloaded(tmp_path: Path) -> None:
    file = tmp_path / "gpushare.yaml"
    file.write_text("max_per_request: {memory: 4GiB}\n")
    os.utime(file, ns=(1, 1))
    with fakes.node(tmp_path, FakeDriver(fakes.card(0)), config.load(file)) as node:
        assert not [text for text in status_row(node)["warnings"] if str(file) in text]
        os.utime(file, ns=(2, 2))
        (told,) = (text for text in status_row(node)["warnings"] if str(file) in text)
    assert told.endswith("sudo gpushare config reload")
