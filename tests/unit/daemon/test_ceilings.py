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
from gpushare.daemon.control.resize import set_quota
from gpushare.daemon.life import release
from gpushare.daemon.life.host import open_tenant
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import NoRoom
from gpushare.daemon.views.rows import status_row
from gpushare.quota import QuotaError

from . import fakes
from .bundles import Container, Engine
from .fakes import GIB, FakeDriver
from .operations import ME, entry_of

FILE = Path("/etc/gpushare/gpushare.yaml")
NOBODY = replace(ME, rootless=True, uid=65534)
MEMORY = {"gpushare.io/memory": "4GiB"}


@contextmanager
def node(folder: Path, text: str, cards: int = 1) -> Iterator[Node]:
    driver = FakeDriver(*(fakes.card(index) for index in range(cards)))
    with fakes.node(folder, driver, config.parse(text, FILE)) as made:
        yield made


def annotated(folder: Path, **asked: str) -> Container:
    annotations = {f"gpushare.io/{key.replace('_', '-')}": text for key, text in asked.items()}
    return Container(folder, annotations=annotations)


CEILINGS = """\
ceilings:
  memory: 8GiB
  cores: 30
namespaces:
  big:
    ceilings: {memory: 64GiB}
  dev-x:
    ceilings:
      count: 1
  "dev-*":
    ceilings: {memory: 2GiB}
    defaults: {memory: 16GiB}
    trust: {env: ask}
"""


def test_a_container_above_a_ceiling_is_told_key_value_ceiling_and_line(tmp_path: Path) -> None:
    with node(tmp_path, CEILINGS) as made:
        container = annotated(tmp_path / "b", memory="9GiB")
        before = container.text()
        with pytest.raises(QuotaError) as refused:
            container.create(made)
        assert str(refused.value) == (
            'annotation gpushare.io/memory: "9GiB" is above the ceiling, 8GiB (ceilings.memory, '
            "/etc/gpushare/gpushare.yaml:2); ask for 8GiB or less"
        )
        assert container.text() == before
        assert not made.ledger.entries


def test_an_environment_that_may_ask_is_refused_above_the_ceiling_too(tmp_path: Path) -> None:
    with node(tmp_path, CEILINGS) as made:
        with pytest.raises(QuotaError, match=r"env GPUSHARE_MEMORY.*above the ceiling, 8GiB"):
            Container(tmp_path / "b", "GPUSHARE_MEMORY=9GiB").create(made)
        at_it = Container(tmp_path / "c", "GPUSHARE_MEMORY=8GiB", identity="c")
        assert at_it.create(made)["given"] == "shared"


@pytest.mark.parametrize(
    ("namespace", "memory", "line"),
    [("big", "64GiB", 6), ("team", "8GiB", 2), ("dev-y", "2GiB", 11), ("dev-x", "8GiB", 2)],
)
def test_a_namespace_has_its_own_ceilings(
    tmp_path: Path, namespace: str, memory: str, line: int
) -> None:
    with node(tmp_path, CEILINGS) as made:
        for size, given in ((memory, True), ("65GiB", False)):
            pod = "5a4d" if given else "77aa"
            asked = {"gpushare.io/memory": size}
            engine = Engine(tmp_path, asked, pod=pod, namespace=namespace)
            container = engine.container(f"train-{given}")
            if given:
                assert container.create(made)["given"] == "shared"
                continue
            with pytest.raises(QuotaError, match=rf"above the ceiling, {memory} .*:{line}\)"):
                container.create(made)


def test_a_namespace_s_default_above_its_ceiling_is_the_ceiling(tmp_path: Path) -> None:
    with node(tmp_path, CEILINGS) as made:
        engine = Engine(tmp_path, {"gpushare.io/cores": "10"}, namespace="dev-y")
        key = engine.container("train").create(made)["key"]
        entry = made.ledger.entries[key]
        assert entry.quota == {"cores": "10 pod annotation", "memory": "2GiB default"}
        assert entry.holdings[0].memory_bytes == 2 * GIB


def test_a_namespace_may_trust_the_environment_otherwise(tmp_path: Path) -> None:
    with node(tmp_path, CEILINGS) as made:
        for namespace, given in (("dev-y", "shared"), ("team", "none")):
            engine = Engine(tmp_path, {}, pod=namespace, namespace=namespace)
            container = engine.container(f"train-{namespace}", "GPUSHARE_MEMORY=1GiB")
            assert container.create(made, "weak")["given"] == given


def test_a_user_of_docker_gets_no_namespace_s_ceilings_by_an_annotation(tmp_path: Path) -> None:
    moby = Path("io.containerd.runtime.v2.task/moby")
    with node(tmp_path, CEILINGS) as made:
        container = Engine(
            tmp_path, {"gpushare.io/memory": "64GiB"}, moby, namespace="big"
        ).container("train")
        with pytest.raises(QuotaError, match="above the ceiling, 8GiB"):
            container.create(made)


def test_what_the_operator_sets_is_above_the_ceiling_and_stays_so(tmp_path: Path) -> None:
    text = "ceilings: {memory: 8GiB, memory_percent: 10}\n"
    with node(tmp_path, text) as made:
        container = annotated(tmp_path / "b", memory="8GiB")
        key = container.create(made)["key"]
        set_quota(made.ledger.entries[key], {"memory": "64GiB"}, made)
        release.end(key, made, "test")
        container.create(made)
        entry = made.ledger.entries[key]
        assert entry.holdings[0].memory_bytes == 64 * GIB


@pytest.mark.parametrize(
    ("text", "asked", "told"),
    [
        (
            "ceilings: {memory: 8GiB}\n",
            {"memory_percent": "50"},
            "card 0 would give 70 GiB, above the ceiling 8 GiB (ceilings.memory, ",
        ),
        (
            "ceilings: {memory_percent: 5}\n",
            {"memory": "8GiB"},
            "card 0 would give 8 GiB, above the ceiling 7 GiB (ceilings.memory_percent, ",
        ),
        (
            "ceilings: {memory: 8GiB}\n",
            {"memory_percent": "1", "memory_limit": "8GiB"},
            "",
        ),
        (
            "ceilings: {memory_percent: 5, memory_limit: 7GiB}\n",
            {"memory_percent": "5", "memory_limit": "7GiB"},
            "",
        ),
    ],
)
def test_a_ceiling_in_the_other_form_is_held_by_the_card(
    tmp_path: Path, text: str, asked: dict[str, str], told: str
) -> None:
    with node(tmp_path, text) as made:
        container = annotated(tmp_path / "b", **asked)
        if not told:
            assert container.create(made)["given"] == "shared"
            return
        with pytest.raises(NoRoom, match=re.escape(told)):
            container.create(made)
        assert not made.ledger.entries


def test_a_burst_in_bytes_is_held_to_a_ceiling_of_memory_in_percent(tmp_path: Path) -> None:
    container = annotated(tmp_path / "b", memory="1GiB", memory_limit="64GiB")
    told = "would give 64 GiB, above the ceiling 7 GiB"
    with (
        node(tmp_path, "ceilings: {memory_percent: 5}\n") as made,
        pytest.raises(NoRoom, match=told),
    ):
        container.create(made)


def test_all_cards_are_held_to_the_ceiling_of_their_number(tmp_path: Path) -> None:
    hook = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["hook", "prestart"]}
    env = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=all", "GPUSHARE_MEMORY=1GiB")
    for count, given in ((1, False), (2, True)):
        with node(tmp_path / str(count), f"ceilings: {{count: {count}}}\n", cards=2) as made:
            hooks = {"prestart": [hook]}
            container = Container(tmp_path / f"b{count}", *env, hooks=hooks)
            if given:
                assert container.create(made)["given"] == "shared"
                continue
            with pytest.raises(NoRoom, match=r"all 2 cards .* ceiling 1 \(ceilings.count, .*:1\)"):
                container.create(made)


# --- together ---


TOGETHER = """\
namespaces:
  team:
    together:
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
            "would give namespace team 11 GiB in all, above 10 GiB (namespaces.team.toge",
        ),
        (
            {"memory": "2GiB", "memory-limit": "8GiB"},
            {"memory": "3GiB"},
            "would give namespace team 11 GiB in all, above 10 GiB",
        ),
        (
            {"memory": "1GiB", "cores": "30"},
            {"memory": "1GiB", "cores": "30"},
            "would give namespace team 60 % of its compute in all, above 50 % (namespaces.team.tog",
        ),
        ({"memory": "8GiB"}, {"memory": "2GiB"}, ""),
    ],
)
def test_what_a_namespace_has_at_once_is_held_on_each_card(
    tmp_path: Path, first: dict[str, str], second: dict[str, str], told: str
) -> None:
    with node(tmp_path, TOGETHER) as made:
        for pod, asked in (("one", first), ("two", second)):
            annotations = {f"gpushare.io/{key}": text for key, text in asked.items()}
            container = Engine(tmp_path, annotations, pod=pod).container(f"train-{pod}")
            if pod == "one" or not told:
                assert container.create(made)["given"] == "shared"
                continue
            with pytest.raises(NoRoom, match=re.escape(told)):
                container.create(made)
        elsewhere = Engine(tmp_path, MEMORY, pod="three", namespace="other").container("train-3")
        assert elsewhere.create(made)["given"] == "shared"


def test_what_ended_counts_no_more(tmp_path: Path) -> None:
    with node(tmp_path, TOGETHER) as made:
        keys: list[str] = []
        for pod in ("a", "b", "c", "d"):
            engine = Engine(tmp_path, {"gpushare.io/memory": "1GiB"}, pod=pod)
            container = engine.container(f"train-{pod}")
            if pod == "d":
                with pytest.raises(NoRoom, match="namespace team 4 parts in all, above 3"):
                    container.create(made)
                release.end(keys[0], made, "test")
            keys.append(container.create(made)["key"])


def test_a_restart_of_the_daemon_forgets_nobody_s_share(tmp_path: Path) -> None:
    with node(tmp_path, TOGETHER) as before:
        asked = {"gpushare.io/memory": "8GiB"}
        Engine(tmp_path, asked, pod="one").container("train-1").create(before)
    with node(tmp_path, TOGETHER) as after:
        container = Engine(tmp_path, asked, pod="two").container("train-2")
        with pytest.raises(NoRoom, match="namespace team 16 GiB in all, above 10 GiB"):
            container.create(after)


# --- users ---


def test_a_user_may_not_promise_himself_more_than_half_of_a_card(tmp_path: Path) -> None:
    with node(tmp_path, "") as made:
        with pytest.raises(NoRoom) as refused:
            open_tenant(NOBODY, {"memory": "100GiB"}, made)
        assert (
            "card 0 would give user 65534 100 GiB in all, above 70 GiB "
            "(users.together.memory_percent, a default of gpushare)"
        ) in str(refused.value)
        open_tenant(NOBODY, {"memory": "40GiB"}, made)
        with pytest.raises(NoRoom, match="user 65534 80 GiB in all, above 70 GiB"):
            open_tenant(NOBODY, {"memory": "40GiB"}, made)
        with pytest.raises(NoRoom, match="user 65534 120 GiB in all, above 70 GiB"):
            open_tenant(NOBODY, {"memory": "1GiB", "memory-limit": "80GiB"}, made)
        # Another user has a half of his own, and root is the operator.
        open_tenant(replace(NOBODY, uid=1000), {"memory": "40GiB"}, made)
        open_tenant(ME, {"memory": "50GiB"}, made)


def test_a_user_may_not_take_all_the_compute_nor_all_the_places(tmp_path: Path) -> None:
    with node(tmp_path, "") as made:
        with pytest.raises(NoRoom, match="user 65534 60 % of its compute in all, above 50 %"):
            open_tenant(NOBODY, {"memory": "1GiB", "cores": "60"}, made)
        for _ in range(8):
            open_tenant(NOBODY, {"memory": "1GiB"}, made)
        with pytest.raises(NoRoom, match="user 65534 9 parts in all, above 8"):
            open_tenant(NOBODY, {"memory": "1GiB"}, made)


def test_a_user_may_not_put_himself_before_the_containers_of_others(tmp_path: Path) -> None:
    with node(tmp_path, "") as made:
        with pytest.raises(QuotaError, match=r"users.ceilings.classes, a default of gpushare"):
            open_tenant(NOBODY, {"memory": "1GiB", "class": "online"}, made)
        with pytest.raises(QuotaError, match=r"users.ceilings.priority, a default of gpushare"):
            open_tenant(NOBODY, {"memory": "1GiB", "priority": "4"}, made)
        open_tenant(NOBODY, {"memory": "1GiB", "priority": "9"}, made)
        open_tenant(ME, {"memory": "1GiB", "class": "online"}, made)
    with node(tmp_path, "users: {ceilings: {classes: [online, offline]}}\n") as made:
        open_tenant(NOBODY, {"memory": "1GiB", "class": "online"}, made)


def test_the_operator_says_what_users_may(tmp_path: Path) -> None:
    text = "users:\n  ceilings: {memory: 2GiB}\n  together: {memory_percent: 100, tenants: 2}\n"
    with node(tmp_path, text) as made:
        with pytest.raises(QuotaError, match=r"--memory.*users.ceilings.memory, .*yaml:2\)"):
            open_tenant(NOBODY, {"memory": "3GiB"}, made)
        open_tenant(ME, {"memory": "3GiB"}, made)
        for _ in range(2):
            open_tenant(NOBODY, {"memory": "2GiB"}, made)
        with pytest.raises(NoRoom, match=r"3 parts in all, above 2 \(users.together.tenants, .*:3"):
            open_tenant(NOBODY, {"memory": "2GiB"}, made)


def test_root_is_held_to_the_node_s_ceilings_unless_it_sets_a_quota(tmp_path: Path) -> None:
    with node(tmp_path, "ceilings: {memory: 2GiB}\n") as made:
        with pytest.raises(QuotaError, match=r"--memory: \"3GiB\" is above the ceiling, 2GiB"):
            open_tenant(ME, {"memory": "3GiB"}, made)
        entry = entry_of(made, open_tenant(ME, {"memory": "1GiB"}, made))
        assert set_quota(entry, {"memory": "3GiB"}, made).holdings[0].memory_bytes == 3 * GIB


def test_a_policy_that_was_changed_since_is_told_until_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "gpushare.yaml"
    file.write_text("ceilings: {memory: 4GiB}\n")
    os.utime(file, ns=(1, 1))
    with fakes.node(tmp_path, FakeDriver(fakes.card(0)), config.load(file)) as node:
        assert not [text for text in status_row(node)["warnings"] if str(file) in text]
        os.utime(file, ns=(2, 2))
        (told,) = (text for text in status_row(node)["warnings"] if str(file) in text)
    assert told.endswith("sudo gpushare config reload")
