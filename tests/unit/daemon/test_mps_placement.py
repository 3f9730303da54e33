# SPDX-License-Identifier: Apache-2.0
"""Cards in MPS mode: which requests they take, what is refused in words, and when they change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.config import Config, parse
from gpushare.daemon.lifecycle.reserve import TenantIdentity, reserve
from gpushare.daemon.node import MpsCardState, MpsGrant
from gpushare.daemon.operator.reload import NotReloaded, reload_config
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.scheduler_sync import shares_by_card
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.rows import card_rows
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from gpushare.quota.request_policy import ResolvedRequest

from . import fakes
from .fakes import FakeDaemon, FakeDriver, card

CLIENT = {"backend": "mps"}
TWO = 'cards: {"1": {backend: mps}}'


def configured(text: str, folder: Path) -> Config:
    """Write a configuration with the folders of `fakes.node`, and return it."""
    file = folder / "gpushare.yaml"
    folders = {"run_dir": "run", "state_dir": "state", "library_dir": "lib"}
    lines = [f"{key}: {folder / name}" for key, name in folders.items()]
    lines += [f"kubernetes: {{cdi_dir: {folder / 'cdi'}}}", "engines: {sockets: []}", text]
    file.write_text("\n".join(lines))
    return parse(file.read_text(), file)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A node of two cards, of which the second is in MPS mode."""
    config = configured(TWO, tmp_path)
    with fakes.node(tmp_path, FakeDriver(card(0), card(1)), config) as made:
        made.node.mps.cards = {card(1).uuid: MpsCardState()}
        yield made


def created(
    node: FakeDaemon,
    key: int = 1,
    engine: str = "docker",
    uid: int | None = None,
    **asked: str,
) -> TenantRecord:
    """Reserve a container's request."""
    options = {name.replace("_", "-"): text for name, text in asked.items()}
    quota = parse_request({}, {}, options=options).valid()
    record = TenantRecord(f"{key:016x}", "none", f"container-{key}", f"train-{key}", engine)
    return reserve(
        TenantIdentity(record, uid=uid), ResolvedRequest(quota, resolve_request(quota)), node
    )


def index(record: TenantRecord) -> str:
    return record.allocations[0].uuid


def test_a_request_without_a_backend_is_told_that_it_has_to_name_it(node: FakeDaemon) -> None:
    told = "card 1 is in MPS mode, and takes only requests for backend .*set backend to mps"
    with pytest.raises(NoRoom, match=told):
        created(node, memory="4GiB", devices="1")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"devices": "1"}, r"card 1 is in MPS mode, and is for shares only \(cards\.1"),
        ({"count": "1", **CLIENT}, "for shares, and a whole card is requested"),
        ({"memory": "4GiB", "count": "2", **CLIENT}, "a program reaches only one MPS server"),
        ({"memory": "4GiB", "devices": "0,1", **CLIENT}, "a program reaches only one MPS server"),
        ({"memory": "4GiB", "engine": "host", **CLIENT}, "not for gpushare run"),
    ],
)
def test_what_no_card_in_mps_mode_takes_is_told(
    node: FakeDaemon, asked: dict[str, Any], told: str
) -> None:
    with pytest.raises((NoRoom, QuotaError), match=told):
        created(node, **asked)


def test_a_card_without_its_control_daemon_takes_nothing(node: FakeDaemon) -> None:
    node.node.mps.cards = {
        card(1).uuid: MpsCardState(fault="its MPS control daemon does not run: no file")
    }
    with pytest.raises(NoRoom, match="does not run: no file"):
        created(node, memory="4GiB", backend="mps")


def test_containers_of_one_user_are_on_different_cards_unless_they_trust_each_other(
    node: FakeDaemon, tmp_path: Path
) -> None:
    both = 'cards: {"0": {backend: mps}, "1": {backend: mps}}'
    node.node.config = configured(both, tmp_path)

    def client(key: int, uid: int) -> str:
        record = created(node, key, memory="1GiB", backend="mps", uid=uid)
        state = node.node.mps.cards.get(index(record), MpsCardState())
        grants = {**state.grants, record.key: MpsGrant("/c", "/shm", uid, 100, {})}
        node.node.mps.cards = {**node.node.mps.cards, index(record): MpsCardState(grants=grants)}
        return index(record)

    assert len({client(1, 1000), client(2, 1000)}) == 2
    for uid in (1000, 0):
        with pytest.raises(
            NoRoom, match=r"card 0 is in MPS mode, and another .* has host uid 1000"
        ):
            client(3, uid)
    client(4, 2000)
    node.node.config = configured(both.replace("mps}", "mps, mps_trusted: true}"), tmp_path)
    client(5, 0)
    assert [row["mps_trusted"] for row in card_rows(node)] == [True, True]


def test_a_card_keeps_its_backend_while_a_container_uses_it(
    node: FakeDaemon, tmp_path: Path
) -> None:
    created(node, 1, memory="4GiB")
    client = created(node, 2, memory="4GiB", backend="mps")
    configured('cards: {"0": {backend: mps}, "1": {backend: mps}}', tmp_path)
    with pytest.raises(NotReloaded, match=r"cards\.0\.backend, .*card 0 cannot change from back"):
        reload_config(node)
    configured("", tmp_path)
    with pytest.raises(NotReloaded, match=r"use it \(train-2\); run gpushare card drain 1"):
        reload_config(node)
    node.ledger.release(client.key)
    assert reload_config(node) == ["cards"]


def test_a_card_whose_mode_was_changed_while_gpushared_was_stopped_is_drained_first(
    node: FakeDaemon, tmp_path: Path
) -> None:
    created(node, 1, memory="4GiB")
    created(node, 2, memory="4GiB", backend="mps")
    node.node.config = configured('cards: {"0": {backend: mps}}', tmp_path)
    with pytest.raises(NoRoom, match="has containers without MPS from before it was configured"):
        created(node, 3, memory="4GiB", backend="mps")
    with pytest.raises(NoRoom, match="gpushare card drain 1"):
        created(node, 3, memory="4GiB", devices="1")


def test_a_client_is_not_gated_in_time(node: FakeDaemon) -> None:
    created(node, 1, memory="4GiB", cores="30", backend="mps")
    created(node, 2, memory="4GiB", cores="30")
    shares = shares_by_card(node.node, node.ledger)
    assert {uuid: len(on_card) for uuid, on_card in shares.items()} == {card(0).uuid: 1}
