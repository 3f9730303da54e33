# SPDX-License-Identifier: Apache-2.0
"""Which MIG instances fit a request, and on which cards some can be created."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.config import parse
from gpushare.daemon.cards.driver_client import DriverError
from gpushare.daemon.lifecycle.queue import Applicant
from gpushare.daemon.placement.division import CardDivision, HeldInstance, MigKind, usual_places
from gpushare.daemon.placement.model import MigInstance, NonTenantProcess
from gpushare.daemon.service.control_request import ControlRequest, MalformedRequest, Peer
from gpushare.daemon.service.node_operations import NODE_OPERATIONS, cordon_card, status_row
from gpushare.daemon.state import CardUsage, UsageView
from gpushare.daemon.store.ticket import TicketSource
from gpushare.oci.cdi import CdiEdits
from gpushare.quota.errors import QuotaError

from . import fakes
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import opened

#: H100 80GB, as nvidia-smi mig -lgip shows it (MIG user guide).
KINDS = tuple(
    MigKind(number, name, slices, count, sms, round(gib * GIB))
    for number, name, slices, count, sms, gib in (
        (19, "1g.10gb", 1, 7, 16, 9.75),
        (20, "1g.10gb+me", 1, 1, 16, 9.75),
        (15, "1g.20gb", 1, 4, 26, 19.62),
        (14, "2g.20gb", 2, 3, 32, 19.62),
        (9, "3g.40gb", 3, 2, 60, 39.5),
        (5, "4g.40gb", 4, 1, 64, 39.5),
        (0, "7g.80gb", 7, 1, 132, 79.25),
    )
)
PLACED = tuple(replace(kind, places=usual_places(kind, KINDS)) for kind in KINDS)
H100 = CardDivision(PLACED, places_are_told=False)
UUIDS = tuple(fakes.card(index).uuid for index in range(2))
TEXT = "profiles:\n  small: {memory: 8GiB, cores: 12, policy: burst-share}\n"


@pytest.fixture
def driver() -> FakeDriver:
    made = FakeDriver(*(fakes.card(index, 80, "H100") for index in range(2)))
    made.divisions = dict.fromkeys(UUIDS, H100)
    return made


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, driver, parse(TEXT, Path("gpushare.yaml"))) as made:
        yield made


def ask(node: FakeDaemon, *requests: dict[str, str]) -> tuple[list[Any], list[Any]]:
    fields = {"op": "mig-options", "requests": list(requests)}
    rows, _ = NODE_OPERATIONS["mig-options"].run(ControlRequest(fields, Peer(1, 1000)), node)
    found = list(rows)
    cards = [row["card"] for row in found if "card" in row]
    return cards, [row["request"] for row in found if "request" in row]


def names(row: Any, uuid: str = UUIDS[0]) -> list[str]:
    known = {kind.number: kind.name for kind in KINDS}
    return [known[number] for number in row["profiles"].get(uuid, [])]


@pytest.mark.parametrize(
    ("request_", "fitting"),
    [
        ({"memory": "9GiB"}, [kind.name for kind in KINDS]),
        ({"memory": "10GiB"}, [kind.name for kind in KINDS[2:]]),
        # 20 % of the compute: 26 of 132 multiprocessors are 19 %.
        ({"memory": "9GiB", "cores": "20"}, [kind.name for kind in KINDS[3:]]),
        ({"memory-percent": "50"}, ["7g.80gb"]),
        ({"memory-percent": "45"}, ["3g.40gb", "4g.40gb", "7g.80gb"]),
        ({"profile": "small"}, [kind.name for kind in KINDS]),
        ({"count": "1", "backend": "mig", "allow": "MIG 2g.20gb"}, ["2g.20gb"]),
        ({"count": "1", "backend": "mig", "allow": "1g.10gb+me"}, ["1g.10gb+me"]),
        ({"memory": "9GiB", "deny": "MIG 1g"}, [kind.name for kind in KINDS[3:]]),
    ],
)
def test_the_rules_of_placement_say_which_instances_fit(
    node: FakeDaemon, request_: dict[str, str], fitting: list[str]
) -> None:
    _, [row] = ask(node, request_)
    assert names(row) == names(row, UUIDS[1]) == fitting
    assert (row["refusal"], row["waiting"], row["instances"]) == ("", False, [])


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"memory": "90GiB"}, "card 0: MIG 7g.80gb has 79 of 79 GiB available"),
        ({"memory": "1GiB", "count": "2"}, "card 0: a program can use only one instance"),
        ({"memory": "1GiB", "devices": "0"}, "card 0: the request names its card"),
        ({"count": "1"}, "a whole card is requested (an instance: GPUSHARE_BACKEND=mig)"),
        ({"memory": "1GiB", "allow": "A100"}, "MIG 7g.80gb (H100 MIG 7g.80gb) is not in allow"),
    ],
)
def test_a_request_that_no_instance_fits_says_why(
    node: FakeDaemon, request_: dict[str, str], why: str
) -> None:
    _, [row] = ask(node, request_)
    assert row["profiles"] == {}
    assert why in row["refusal"]


def test_a_card_in_use_keeps_its_mode(node: FakeDaemon) -> None:
    opened(node, memory="4GiB", devices="0")
    node.observed.usage = UsageView(
        {UUIDS[1]: CardUsage((NonTenantProcess(812, "Xorg", GIB),), GIB)}
    )
    [first, second], _ = ask(node)
    rule = "MIG mode is off, and only the mode of an unused card can be changed"
    assert first["blocked"].endswith(rule)
    assert first["fix"] == "gpushare card drain 0 --wait"
    assert second["blocked"] == f"is in use by pid 812 Xorg: {rule}"


def test_a_card_in_mig_mode_gets_instances_beside_those_in_use(
    node: FakeDaemon, driver: FakeDriver
) -> None:
    held = (HeldInstance(1, 9, (0, 4)), HeldInstance(2, 19, (4, 1)), HeldInstance(3, 19, (5, 1)))
    parts = [
        replace(
            fakes.card(2 + number, 40 if number == 0 else 10, f"H100 MIG {name}"),
            uuid=f"MIG-{number}",
            instance=MigInstance(UUIDS[0], 0, number, number + 1, 0),
        )
        for number, name in enumerate(("3g.40gb", "1g.10gb"))
    ]
    driver.divisions[UUIDS[0]] = CardDivision(PLACED, is_enabled=True, instances=held)
    node.driver = replace(node.loaded(), cards=(*node.loaded().cards, *parts))
    opened(node, memory="4GiB", devices="MIG-0")
    [card, _], [row] = ask(node, {"memory": "9GiB"})
    assert (card["mig_mode"], card["blocked"], card["placement_source"]) == (True, "", "driver")
    assert [(one["uuid"], one["available"]) for one in card["instances"]] == [
        *(("MIG-0", False), ("MIG-1", True), ("", False))
    ]
    assert row["instances"] == ["MIG-1"]
    # 15 % of the compute is 19 of the 132 multiprocessors: an instance by itself could have it.
    _, [more] = ask(node, {"memory": "9GiB", "cores": "15"})
    assert more["instances"] == []


def test_a_card_that_is_of_no_use_says_so(node: FakeDaemon, driver: FakeDriver) -> None:
    driver.divisions[UUIDS[1]] = CardDivision()
    cordon_card(node.loaded().cards[0], "", node)
    [first, second], _ = ask(node)
    assert (first["blocked"], first["fix"]) == ("is cordoned", "gpushare card uncordon 0")
    assert second["blocked"] == "does not support MIG"


def test_a_driver_that_does_not_answer_leaves_the_card_out(
    node: FakeDaemon, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(uuid: str) -> CardDivision:
        raise DriverError(f"no answer about {uuid}")

    monkeypatch.setattr(driver, "division", hangs)
    [first, _], [row] = ask(node, {"memory": "1GiB"})
    assert first["blocked"] == f"is not described by the driver: no answer about {UUIDS[0]}"
    assert row["refusal"] == "no card of this machine supports MIG"


def test_a_start_that_waits_is_planned_for_in_its_turn(node: FakeDaemon) -> None:
    for index in "01":
        opened(node, memory="75GiB", devices=index)
    for name, memory, priority in (("late", "9GiB", "5"), ("first", "30GiB", "1")):
        asked = {"memory": memory, "priority": priority}
        applicant = Applicant(name, 0, os.getpid(), is_rootless=False)
        node.tickets.take(applicant, TicketSource(asked, {}, {}))
    _, rows = ask(node, {"memory": "1GiB"})
    assert [(row["name"], row["request"], row["waiting"]) for row in rows] == [
        *(("first", "30 GiB", True), ("late", "9 GiB", True), ("--request 1", "1 GiB", False))
    ]
    assert names(rows[0]) == ["3g.40gb", "4g.40gb", "7g.80gb"]


def test_an_invalid_request_is_refused(node: FakeDaemon) -> None:
    with pytest.raises(QuotaError, match="4Q"):
        ask(node, {"memory": "4Q"})
    wrong: list[Any]
    for wrong in ([1], ["memory"], [{"memory": 1}], [{}] * 65):
        with pytest.raises(MalformedRequest):
            ask(node, *wrong)


def test_the_guides_places_are_those_of_the_models() -> None:
    starts = {kind.name: [start for start, _ in usual_places(kind, KINDS)] for kind in KINDS}
    assert starts == {
        "1g.10gb": [*range(7)],
        "1g.10gb+me": [*range(7)],
        "1g.20gb": [0, 2, 4, 6],
        "2g.20gb": [0, 2, 4],
        "3g.40gb": [0, 4],
        "4g.40gb": [0],
        "7g.80gb": [0],
    }
    odd = (MigKind(0, "5g", 5, 1, 50, GIB),)
    assert usual_places(odd[0], odd) == ()


def test_instances_that_the_cdi_spec_lacks_are_named(node: FakeDaemon) -> None:
    part = replace(
        fakes.card(2, 10, "H100 MIG 1g.10gb"),
        uuid="MIG-1",
        instance=MigInstance(UUIDS[0], 0, 1, 3, 0),
    )
    assert not any("MIG" in text for text in status_row(node)["warnings"])
    node.driver = replace(node.loaded(), cards=(*node.loaded().cards, part))
    [warning] = [text for text in status_row(node)["warnings"] if "MIG" in text]
    assert warning.startswith("MIG instances 0:1 are not in the CDI spec of the driver")
    listed = replace(node.loaded().files.cdi, devices={"0:gi3:ci0": CdiEdits()})
    node.driver = replace(node.loaded(), files=replace(node.loaded().files, cdi=listed))
    assert not any("MIG" in text for text in status_row(node)["warnings"])
