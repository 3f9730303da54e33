# SPDX-License-Identifier: Apache-2.0
"""Real containers on a machine of eight cards in NVLink pairs, two sockets: where they land."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.stack import Stack
from tests.stack.bundle import PROBE, Bundle
from tests.stack.program import find

from .waiting import wait_until

SLEEP = ("/bin/busybox", "sleep", "600")
CARDS = 8
INVALID_DEVICE = 101


@pytest.fixture(scope="module")
def machine() -> Iterator[Stack]:
    with Stack(profile="a100-pcie-pairs", cards=CARDS) as made:
        made.start_daemon()
        yield made


def bundle(machine: Stack, **quota: str) -> Bundle:
    busybox = {"/bin/busybox": Path(find("busybox")).read_bytes()}
    return Bundle(machine, quota=quota, args=SLEEP, files=busybox)


@contextmanager
def running(made: Bundle) -> Iterator[list[int]]:
    """Run a container in the background; yields the indices of its cards."""
    made.detach()
    try:
        yield sorted(card["index"] for card in made.tenant["cards"])
    finally:
        made.remove()


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


@pytest.mark.gate
def test_a_program_has_the_cards_of_its_container_alone(machine: Stack) -> None:
    """They are numbered from 0, and it need not select them; there is no third."""
    for card, code in (("0", 0), ("1", 0), ("2", INVALID_DEVICE)):
        made = Bundle(
            machine,
            quota={"memory": "2GiB", "devices": "5,6"},
            args=(*PROBE, "--card", card),
        )
        with made.run() as tenant:
            assert tenant.start()["code"] == code
            if code == 0:
                assert tenant.ask("alloc 1073741824")["code"] == 0
                used = {each["index"]: each["used_bytes"] for each in made.tenant["cards"]}
                assert used[5 + int(card)] >= 1 << 30 > used[6 - int(card)]
        made.remove()


def test_a_drained_card_is_left_by_all_and_takes_no_container(machine: Stack) -> None:
    leaving = bundle(machine, memory="2GiB")
    leaving.detach()
    try:
        assert leaving.tenant["cards"][0]["index"] == 0
        words = ("--reason", "fan", "--stop", "--timeout", "0", "--wait")
        drained = machine.shown("card", "drain", "0", *words)
        assert drained["card"]["cordoned"]
        assert drained["tenants"] == []
        wait_until(lambda: '"stopped"' in leaving.call("state").stdout)
        # The engine would start it again: it is placed elsewhere.
        leaving.call("delete", "--force")
        with running(leaving) as cards:
            assert cards == [1]
        named = bundle(machine, memory="2GiB", devices="0")
        assert "card 0 is cordoned (fan); gpushare card uncordon 0" in named.refusal()
    finally:
        leaving.remove()
        machine.gpushare("card", "uncordon", "0")
    assert "was cordoned by the operator: fan" in machine.gpushare("history").stdout


def test_a_container_is_kept_to_the_cpus_of_its_card(machine: Stack) -> None:
    """This machine has one node; that of cards 4 to 7 is none of it."""
    cpus = Path("/sys/devices/system/node/node0/cpulist").read_text().strip()
    bound = bundle(machine, memory="2GiB", devices="0", numa="bind")
    bound.config["linux"]["resources"].setdefault("cpu", {})
    bound.save()
    before = bound.read()
    with running(bound):
        assert bound.read()["linux"]["resources"]["cpu"] == {"cpus": cpus, "mems": "0"}
        assert status(bound.tenant["pid"])["Cpus_allowed_list"] == cpus
        assert status(bound.tenant["pid"])["Mems_allowed_list"] == "0"
    last = cpus.replace("-", ",").split(",")[-1]
    bound.config["linux"]["resources"]["cpu"] = {"cpus": last}
    bound.save()
    with running(bound):
        assert status(bound.tenant["pid"])["Cpus_allowed_list"] == last
    assert before["linux"]["resources"]["cpu"] == {}
