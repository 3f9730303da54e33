# SPDX-License-Identifier: Apache-2.0
"""`numa: bind`, from the request to the container's spec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import config
from gpushare.config import Config
from gpushare.daemon.cards.nvml_client import nvlink_link
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.placement.model import Links
from gpushare.host.numa import Numa

from . import fakes
from .bundles import BundleToCreate
from .fakes import FakeDaemon, FakeDriver
from .operations import ME, entry_of

ASKED = ("GPUSHARE_MEMORY=1GiB", "GPUSHARE_NUMA=bind")


@pytest.fixture
def numa(tmp_path: Path) -> Numa:
    found = Numa(tmp_path / "sys", tmp_path / "proc")
    folder = found.sys / "devices/system/node"
    for number, cpus in enumerate(("0-3", "4-7")):
        (folder / f"node{number}").mkdir(parents=True)
        (folder / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    (folder / "has_memory").write_text("0-1\n")
    (found.proc / "self").mkdir(parents=True)
    (found.proc / "self/status").write_text("Cpus_allowed_list:\t0-7\nMems_allowed_list:\t0-1\n")
    return found


def on_nodes(
    folder: Path, numa: Numa, nodes: dict[int, int], said: Config | None
) -> Iterator[FakeDaemon]:
    driver = FakeDriver(*(fakes.card(index) for index in range(2)))
    with fakes.node(folder, driver, said) as made:
        links = Links({}, {fakes.card(index).uuid: node for index, node in nodes.items()})
        driver.near, made.node.numa = links, numa
        yield made


@pytest.fixture
def node(tmp_path: Path, numa: Numa) -> Iterator[FakeDaemon]:
    yield from on_nodes(tmp_path / "node", numa, {0: 1, 1: 0}, None)


def cpuset(container: BundleToCreate) -> tuple[str | None, str | None]:
    cpu = container.document()["linux"]["resources"].get("cpu", {})
    return cpu.get("cpus"), cpu.get("mems")


def test_a_container_is_kept_to_its_card_s_node(tmp_path: Path, node: FakeDaemon) -> None:
    container = BundleToCreate(tmp_path / "b", *ASKED)
    before = container.document()
    container.create(node)
    assert cpuset(container) == ("4-7", "1")
    # A second start begins with what the engine wrote.
    container.create(node)
    assert container.document()["x-gpushare"]["linux.resources.cpu.cpus"]["set"] == "4-7"
    assert "cpu" not in before["linux"]["resources"]


def test_where_nothing_is_left_it_starts_as_it_was_and_says_so(
    tmp_path: Path, node: FakeDaemon
) -> None:
    linux = {"resources": {"cpu": {"cpus": "0-1", "mems": "0"}}}
    container = BundleToCreate(tmp_path / "b", *ASKED, linux=linux)
    key = container.create(node)["key"]
    assert cpuset(container) == ("0-1", "0")
    assert node.ledger.entries[key].notes == (
        "numa: bind: it may have CPUs 0-1, but its cards are on 4-7: left unchanged",
        "numa: bind: it may have memory nodes 0, but its cards are on 1: left unchanged",
    )


def test_a_card_with_an_unknown_node_changes_no_cpuset(tmp_path: Path, numa: Numa) -> None:
    for made in on_nodes(tmp_path / "node", numa, {}, None):
        container = BundleToCreate(tmp_path / "b", *ASKED)
        key = container.create(made)["key"]
        assert cpuset(container) == (None, None)
        assert made.ledger.entries[key].notes == (
            "numa: bind: the NUMA node of card 0 is not known: left as is",
        )


def test_the_node_s_default_binds_and_a_container_may_decline(tmp_path: Path, numa: Numa) -> None:
    said = config.parse("defaults: {numa: bind}\n", tmp_path / "gpushare.yaml")
    for made in on_nodes(tmp_path / "node", numa, {0: 1}, said):
        bound = BundleToCreate(tmp_path / "b", ASKED[0])
        bound.create(made)
        assert cpuset(bound) == ("4-7", "1")
        free = BundleToCreate(tmp_path / "c", ASKED[0], "GPUSHARE_NUMA=none", identity="c")
        free.create(made)
        assert cpuset(free) == (None, None)


def test_a_host_process_gets_a_note_that_it_is_not_bound(node: FakeDaemon) -> None:
    entry = entry_of(node, open_tenant(ME, {"memory": "1GiB", "numa": "bind"}, node, node.room))
    assert entry.notes == (
        "--numa bind was not applied: it is only for containers. Put numactl(8) before the command",
    )


def test_the_distance_of_a_set_is_that_of_its_pairs() -> None:
    pairs = {"AB": 12, "AC": 1, "BC": 1}
    links = Links({frozenset(pair): nvlink_link(count) for pair, count in pairs.items()})
    assert links.distance("ABC") == nvlink_link(12).distance + 2 * nvlink_link(1).distance
    assert links.distance("A") == 0
