# SPDX-License-Identifier: Apache-2.0
"""Real containers on a machine of eight cards in NVLink pairs, two sockets: where they land."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="module")
def docker(machine: Stack) -> Iterator[Stack]:
    machine.start_containerd()
    engine = machine.start_docker()
    engine.prepare(machine.installation.probe)
    yield machine
    engine.finish()


def call(machine: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*machine.cli, *words],
        check=False,
        capture_output=True,
        text=True,
        env=machine.environment,
        timeout=60,
    )


def answer(machine: Stack, *words: str) -> Any:
    done = call(machine, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def bundle(machine: Stack, **quota: str) -> Bundle:
    busybox = {"/bin/busybox": Path(find("busybox")).read_bytes()}
    return Bundle(machine, quota=quota, args=SLEEP, files=busybox)


@contextmanager
def running(made: Bundle) -> Iterator[list[int]]:
    """Run a container in the background; yields the indices of its cards."""
    made.detach()
    try:
        (tenant,) = (one for one in answer(made.stack, "ps") if one["id"] == made.id)
        yield sorted(card["index"] for card in tenant["cards"])
    finally:
        made.remove()


def pid_of(made: Bundle) -> int:
    (tenant,) = (one for one in answer(made.stack, "ps") if one["id"] == made.id)
    return int(tenant["pid"])


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def test_whole_cards_are_pairs_and_single_ones_come_from_a_broken_pair(machine: Stack) -> None:
    with ExitStack() as them:
        placed = [
            them.enter_context(running(bundle(machine, count=count)))
            for count in ("1", "2", "1", "4")
        ]
        assert placed == [[0], [2, 3], [1], [4, 5, 6, 7]]
        with bundle(machine, count="1").run() as refused:
            assert refused.wait() != 0
        assert "no whole card is available: card 0 is allocated" in refused.errors


def test_shares_go_to_the_fullest_card_or_as_they_ask(machine: Stack) -> None:
    with ExitStack() as them:

        def placed(**quota: str) -> list[int]:
            return them.enter_context(running(bundle(machine, memory="2GiB", **quota)))

        assert placed(devices="4") == [4]
        assert placed() == [4]
        assert placed(placement="spread") == [0]
        assert placed(count="2") == [4, 5]
        cards = answer(machine, "card", "ls")
        some = ",".join(cards[index]["uuid"] for index in (1, 6, 7))
        assert placed(count="2", allow=some, placement="topology") == [6, 7]
        assert placed(count="2", allow=some, placement="spread") == [1, 6]


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
                (row,) = (one for one in answer(machine, "ps") if one["id"] == made.id)
                used = {each["index"]: each["used_bytes"] for each in row["cards"]}
                assert used[5 + int(card)] >= 1 << 30 > used[6 - int(card)]
        made.remove()


def test_every_card_says_how_far_the_others_are(machine: Stack) -> None:
    cards = answer(machine, "card", "ls")
    assert [card["numa_node"] for card in cards] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [link["kind"] for link in cards[0]["links"]] == [
        *("NV12", "PHB", "PHB"),
        *("SYS",) * 4,
    ]
    table = call(machine, "card", "ls").stdout.splitlines()
    assert "NV12 1 " in table[1]


def test_a_drained_card_is_left_by_all_and_takes_no_container(machine: Stack) -> None:
    leaving = bundle(machine, memory="2GiB")
    leaving.detach()
    try:
        (tenant,) = (one for one in answer(machine, "ps") if one["id"] == leaving.id)
        assert tenant["cards"][0]["index"] == 0
        words = ("--reason", "fan", "--stop", "--timeout", "0", "--wait")
        drained = answer(machine, "card", "drain", "0", *words)
        assert drained["card"]["cordoned"]
        assert drained["tenants"] == []
        wait_until(lambda: '"stopped"' in leaving.call("state").stdout)
        # The engine would start it again: it is placed elsewhere.
        leaving.call("delete", "--force")
        with running(leaving) as cards:
            assert cards == [1]
        named = bundle(machine, memory="2GiB", devices="0")
        with named.run() as refused:
            assert refused.wait() != 0
        assert "card 0 is cordoned (fan); gpushare card uncordon 0" in refused.errors
        shown = answer(machine, "ls")[0]
        assert (shown["cordoned"], shown["cordon_reason"]) == (True, "fan")
    finally:
        leaving.remove()
        assert call(machine, "card", "uncordon", "0").returncode == 0
    history = call(machine, "history").stdout
    assert "was cordoned by the operator: fan" in history


def test_a_container_is_kept_to_the_cpus_of_its_card(machine: Stack) -> None:
    """This machine has one node; that of cards 4 to 7 is none of it."""
    cpus = Path("/sys/devices/system/node/node0/cpulist").read_text().strip()
    bound = bundle(machine, memory="2GiB", devices="0", numa="bind")
    bound.config["linux"]["resources"].setdefault("cpu", {})
    bound.save()
    before = bound.read()
    with running(bound):
        assert bound.read()["linux"]["resources"]["cpu"] == {"cpus": cpus, "mems": "0"}
        assert status(pid_of(bound))["Cpus_allowed_list"] == cpus
        assert status(pid_of(bound))["Mems_allowed_list"] == "0"
    last = cpus.replace("-", ",").split(",")[-1]
    bound.config["linux"]["resources"]["cpu"] = {"cpus": last}
    bound.save()
    with running(bound):
        assert status(pid_of(bound))["Cpus_allowed_list"] == last
    assert before["linux"]["resources"]["cpu"] == {}


def test_a_card_of_a_node_that_is_not_here_leaves_the_container_as_it_was(machine: Stack) -> None:
    free = bundle(machine, memory="2GiB", devices="4", numa="bind")
    with running(free):
        assert "cpu" not in free.read()["linux"]["resources"]
        shown = answer(machine, "inspect", free.id)
    assert any("numa: bind: " in note and "left unchanged" in note for note in shown["notes"])


def docker_says(machine: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *words],
        check=False,
        capture_output=True,
        text=True,
        env=machine.environment,
        timeout=120,
    )


@contextmanager
def started(machine: Stack, name: str, *flags: str) -> Iterator[None]:
    run = ("run", "-d", "-i", "--network=none", "--runtime=gpushare", "--name", name, *flags)
    done = docker_says(machine, *run, "gpushare-probe")
    try:
        assert done.returncode == 0, done.stderr
        yield
    finally:
        docker_says(machine, "rm", "--force", name)


def cards_of(machine: Stack, name: str) -> list[int]:
    found = [one for one in answer(machine, "ps") if one["name"] == name]
    return [card["index"] for one in found for card in one["cards"]]


def test_a_container_that_docker_restarts_leaves_a_cordoned_card(docker: Stack) -> None:
    asked = ("-e", "GPUSHARE_MEMORY=2GiB")
    with (
        started(docker, "free", *asked),
        started(docker, "bound", *asked, "-e", "GPUSHARE_DEVICES=0"),
    ):
        assert cards_of(docker, "free") == cards_of(docker, "bound") == [0]
        assert call(docker, "card", "cordon", "0", "--reason", "fan").returncode == 0
        try:
            assert docker_says(docker, "restart", "-t0", "free").returncode == 0
            assert cards_of(docker, "free") == [1]
            refused = docker_says(docker, "restart", "-t0", "bound")
            assert refused.returncode != 0
            assert "card 0 is cordoned (fan); gpushare card uncordon 0" in refused.stderr
        finally:
            assert call(docker, "card", "uncordon", "0").returncode == 0
        assert docker_says(docker, "start", "bound").returncode == 0
        assert cards_of(docker, "bound") == [0]


def test_docker_s_own_choice_of_cpus_is_never_made_larger(docker: Stack) -> None:
    cpus = Path("/sys/devices/system/node/node0/cpulist").read_text().strip()
    last = cpus.replace("-", ",").split(",")[-1]
    asked = ("-e", "GPUSHARE_MEMORY=2GiB", "-e", "GPUSHARE_NUMA=bind", "-e", "GPUSHARE_DEVICES=0")
    for name, flags, has in (("all", (), cpus), ("one", (f"--cpuset-cpus={last}",), last)):
        with started(docker, name, *asked, *flags):
            pid = int(docker_says(docker, "inspect", "-f", "{{.State.Pid}}", name).stdout)
            assert status(pid)["Cpus_allowed_list"] == has
