# SPDX-License-Identifier: Apache-2.0
"""What all containers of a namespace have of all cards of a node together, and refusals' words."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import config
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.placement.request import NoRoom

from . import fakes
from .bundles import ContainerdBundles
from .fakes import FakeDriver
from .operations import ME

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
                "/etc/gpushare/gpushare.yaml:4): team/job-1/train-0 8 GiB, "
                "team/job-1/train-1 8 GiB; "
                "request less (pod annotation gpushare.io/memory) or see gpushare ps"
            ),
        ),
        (
            [{"memory": "1GiB", "cores": "60"}] * 2 + [{"memory": "1GiB", "cores": "1"}],
            (
                "namespace team would have 121 % of the compute of all cards together, above 120 % "
                "of the compute (namespaces.team.max_per_node.cores, "
            ),
        ),
        (
            [{"memory": "1GiB", "devices": "0,1"}, {"memory": "1GiB", "devices": "2"}],
            (
                "namespace team would have 3 cards, above 2 cards "
                "(namespaces.team.max_per_node.cards, "
                "/etc/gpushare/gpushare.yaml:6): team/job-1/train-0 on 0 1; see gpushare ps"
            ),
        ),
        (
            [{"memory": "1GiB"}] * 4,
            "namespace team would have 4 tenants, above 3 tenants",
        ),
        (
            [{"memory": "4GiB", "allow": "A100"}, {"memory": "4GiB", "devices": "2"}],
            (
                "namespace team would have 8 GiB of A100, above 6 GiB "
                "(namespaces.team.max_per_node.models.A100.memory, /etc/gpushare/gpushare.yaml:9): "
                "team/job-1/train-0 4 GiB"
            ),
        ),
        ([{"memory": "8GiB"}, {"memory": "8GiB"}, {"memory": "4GiB"}], ""),
        ([{"memory": "4GiB", "devices": "2"}, {"memory": "4GiB"}], ""),
    ],
)
def test_the_total_of_a_namespace_over_all_cards_is_bounded(
    tmp_path: Path, asked: list[dict[str, str]], told: str
) -> None:
    cards = [fakes.card(index, 140, model) for index, model in enumerate(MODELS)]
    with fakes.node(tmp_path, FakeDriver(*cards), config.parse(TOTAL, FILE)) as made:
        for number, one in enumerate(asked):
            annotations = {f"gpushare.io/{key}": text for key, text in one.items()}
            engine = ContainerdBundles(tmp_path, annotations, pod=f"pod{number}")
            container = engine.container(f"train-{number}")
            if number + 1 < len(asked) or not told:
                assert container.create(made)["mode"] == "shared"
                continue
            with pytest.raises(NoRoom, match=re.escape(told)):
                container.create(made)
        keys = list(made.ledger.entries)
        elsewhere = ContainerdBundles(
            tmp_path, {"gpushare.io/memory": "30GiB"}, pod="x", namespace="other"
        )
        assert elsewhere.container("train-x").create(made)["mode"] == "shared"
        for key in keys:
            release.release_tenant(key, made, "it ended")
        again = ContainerdBundles(tmp_path, {"gpushare.io/memory": "20GiB"}, pod="y").container(
            "train-y"
        )
        assert again.create(made)["mode"] == "shared"


def test_a_card_that_the_namespace_has_already_is_none_more(tmp_path: Path) -> None:
    """The fullest card would be one too many; the one that it is on is taken."""
    cards = [fakes.card(0, 140), fakes.card(1, 20)]
    text = "namespaces: {team: {max_per_node: {cards: 1}}}\n"
    with fakes.node(tmp_path, FakeDriver(*cards), config.parse(text, FILE)) as made:
        for pod, devices in (("one", {"gpushare.io/devices": "0"}), ("two", {})):
            asked = {"gpushare.io/memory": "4GiB", **devices}
            key = (
                ContainerdBundles(tmp_path, asked, pod=pod)
                .container(f"train-{pod}")
                .create(made)["key"]
            )
            assert made.ledger.entries[key].allocations[0].uuid == cards[0].uuid


def test_a_user_has_a_total_too(tmp_path: Path) -> None:
    text = "users: {max_per_node: {memory: 6GiB}}\n"
    user = replace(ME, rootless=True, uid=65534)
    with fakes.node(tmp_path, FakeDriver(), config.parse(text, FILE)) as made:
        open_tenant(user, {"memory": "4GiB"}, made)
        with pytest.raises(
            NoRoom, match=r"user 65534 would have 8 GiB .*users.max_per_node.memory"
        ):
            open_tenant(user, {"memory": "4GiB"}, made)


@pytest.mark.parametrize(
    ("asked", "fix"),
    [
        (
            {"memory": "200GiB"},
            "; request less (pod annotation gpushare.io/memory) or see gpushare ls",
        ),
        (
            {"memory-percent": "99"},
            "; request less (pod annotation gpushare.io/memory-percent) or see",
        ),
        (
            {"memory": "4GiB", "cores": "90"},
            "; request less (pod annotation gpushare.io/cores) or see",
        ),
        (
            {"memory": "4GiB", "allow": "T4"},
            "card 0 (H200) is not in allow; change allow (pod annotation gpushare.io/allow)",
        ),
        (
            {"memory": "4GiB", "deny": "h200"},
            "card 0 (H200) is in deny; change deny (pod annotation gpushare.io/deny) or see",
        ),
        (
            {"memory": "200GiB", "count": "2", "devices": "0,1"},
            "see gpushare ls",
        ),
    ],
)
def test_a_refusal_names_the_key_and_the_fix(
    tmp_path: Path, asked: dict[str, str], fix: str
) -> None:
    count = 2 if "count" in asked else 1
    driver = FakeDriver(*(fakes.card(index) for index in range(count)))
    with fakes.node(tmp_path, driver) as made:
        open_tenant(ME, {"memory": "4GiB", "cores": "20"}, made)
        annotations = {f"gpushare.io/{key}": text for key, text in asked.items()}
        container = ContainerdBundles(tmp_path, annotations).container("train")
        with pytest.raises(NoRoom, match=re.escape(fix)) as refused:
            container.create(made)
        helps = "allow" not in asked and "deny" not in asked
        assert ("request less" in str(refused.value)) == helps
