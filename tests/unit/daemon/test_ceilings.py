# SPDX-License-Identifier: Apache-2.0
"""The node's policy, from the file to what a container, or a user's command, is given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import config
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.placement.request import NoRoom
from gpushare.quota.errors import QuotaError

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import ME

FILE = Path("/etc/gpushare/gpushare.yaml")
NOBODY = replace(ME, rootless=True, uid=65534)


@contextmanager
def node(folder: Path, text: str, cards: int = 1) -> Iterator[FakeDaemon]:
    driver = FakeDriver(*(fakes.card(index) for index in range(cards)))
    with fakes.node(folder, driver, config.parse(text, FILE)) as made:
        yield made


def annotated(folder: Path, **asked: str) -> BundleToCreate:
    annotations = {f"gpushare.io/{key.replace('_', '-')}": text for key, text in asked.items()}
    return BundleToCreate(folder, annotations=annotations)


def test_a_namespace_may_trust_the_environment_otherwise(tmp_path: Path) -> None:
    with node(tmp_path, 'namespaces: {"dev-*": {trust: {env: request}}}\n') as made:
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
        assert entry.allocations[0].quota_bytes == 64 * GIB


BYTES, PERCENT = "max_per_request: {memory: 8GiB}\n", "max_per_request: {memory_percent: 5}\n"


@pytest.mark.parametrize(
    ("text", "asked", "told"),
    [
        (BYTES, {"memory_percent": "50"}, "would give 70 GiB, above the ceiling 8 GiB (max_per"),
        (PERCENT, {"memory": "8GiB"}, "would give 8 GiB, above the ceiling 7 GiB (max_per"),
        (BYTES, {"memory_percent": "1", "memory_limit": "8GiB"}, ""),
        (PERCENT, {"memory": "7GiB"}, ""),
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


@pytest.mark.parametrize(("most", "given"), [(1, False), (2, True)])
def test_a_request_for_all_cards_obeys_the_ceiling_of_their_number(
    tmp_path: Path, most: int, given: bool
) -> None:
    hook = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["hook", "prestart"]}
    env = ("NVIDIA_VISIBLE_DEVICES=all", "GPUSHARE_MEMORY=1GiB")
    refused = pytest.raises(NoRoom, match=r"all 2 cards .* ceiling 1 \(max_per_request.count")
    with node(tmp_path, f"max_per_request: {{count: {most}}}\n", cards=2) as made:
        container = BundleToCreate(tmp_path / "b", *env, hooks={"prestart": [hook]})
        with nullcontext() if given else refused:
            assert container.create(made)["mode"] == "shared"


# --- together ---


TOGETHER = """\
namespaces:
  team:
    max_per_card:
      memory: 10GiB
      cores: 50
"""


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({"memory": "8GiB"}, {"memory": "3GiB"}, "11 GiB in all, above 10 GiB (namespaces.team"),
        ({"memory": "2GiB", "memory-limit": "8GiB"}, {"memory": "3GiB"}, "11 GiB in all, above"),
        ({"memory": "1GiB", "cores": "30"}, {"memory": "1GiB", "cores": "30"}, "60 % of its comp"),
        ({"memory": "8GiB"}, {"memory": "2GiB"}, ""),
    ],
)
def test_the_maximum_of_a_namespace_holds_on_each_card(
    tmp_path: Path, first: dict[str, str], second: dict[str, str], told: str
) -> None:
    def container(pod: str, asked: dict[str, str], namespace: str = "team") -> BundleToCreate:
        annotations = {f"gpushare.io/{key}": text for key, text in asked.items()}
        engine = ContainerdBundles(tmp_path, annotations, pod=pod, namespace=namespace)
        return engine.container(f"train-{pod}")

    with node(tmp_path, TOGETHER) as made:
        container("one", first).create(made)
        if told:
            with pytest.raises(NoRoom, match=re.escape(f"would give namespace team {told}")):
                container("two", second).create(made)
        else:
            container("two", second).create(made)
        assert container("three", {"memory": "4GiB"}, "other").create(made)["mode"] == "shared"


# --- users ---


def test_a_user_may_not_reserve_more_than_half_of_a_card(tmp_path: Path) -> None:
    with node(tmp_path, "") as made:
        with pytest.raises(NoRoom) as refused:
            open_tenant(NOBODY, {"memory": "100GiB"}, made, made.room)
        assert "card 0 would give user 65534 100 GiB in all, above 70 GiB" in str(refused.value)
        open_tenant(NOBODY, {"memory": "40GiB"}, made, made.room)
        with pytest.raises(NoRoom, match="user 65534 80 GiB in all, above 70 GiB"):
            open_tenant(NOBODY, {"memory": "40GiB"}, made, made.room)
        with pytest.raises(NoRoom, match="user 65534 120 GiB in all, above 70 GiB"):
            open_tenant(NOBODY, {"memory": "1GiB", "memory-limit": "80GiB"}, made, made.room)
        # Another user has a half of his own, and root is the operator.
        open_tenant(replace(NOBODY, uid=1000), {"memory": "40GiB"}, made, made.room)
        open_tenant(ME, {"memory": "50GiB"}, made, made.room)


def test_a_user_may_not_take_precedence_over_containers(tmp_path: Path) -> None:
    with node(tmp_path, "") as made:
        for refused in ({"class": "online"}, {"priority": "4"}):
            with pytest.raises(QuotaError, match=r"users.max_per_request.\w+, gpushare default"):
                open_tenant(NOBODY, {"memory": "1GiB", **refused}, made, made.room)
        open_tenant(NOBODY, {"memory": "1GiB", "priority": "9"}, made, made.room)
        open_tenant(ME, {"memory": "1GiB", "class": "online"}, made, made.room)
