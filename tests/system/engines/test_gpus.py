# SPDX-License-Identifier: Apache-2.0
"""`docker run --gpus` as Docker before 28.3 does it: by a hook of NVIDIA's and a variable."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.verify import ProbeTenant, image
from tests.stack import Stack
from tests.stack.distribution import Distribution
from tests.stack.program import find

from .gpus import RAN, EngineClient, assert_untouched, stand_in

GIB = 1 << 30
WHOLE = 139 * GIB
MEMORY = ("-e", "GPUSHARE_MEMORY=4GiB")


@pytest.fixture(scope="module")
def stack(distribution: Distribution) -> Iterator[Stack]:
    """Two cards, and a dockerd that finds NVIDIA's hook.

    The simulated driver shows both cards wherever it is, so that the nodes say what was passed.
    """
    with Stack(cards=2, distribution=distribution) as made:
        stand_in(made)
        made.start_daemon()
        made.start_containerd().prepare(made.installation.probe)
        made.start_docker().prepare(made.installation.probe)
        yield made


@pytest.fixture
def docker(stack: Stack) -> Iterator[EngineClient]:
    yield EngineClient(stack)
    assert not (stack.root / RAN).exists(), "NVIDIA's own hook was run"


@pytest.fixture
def uuids(stack: Stack) -> list[str]:
    devices = json.loads(stack.cdi.read_text())["devices"]
    return [device["name"] for device in devices if device["name"].startswith("GPU-")]


def test_the_hook_is_the_one_that_docker_itself_would_run(stack: Stack) -> None:
    """Else the other tests would show nothing."""
    ran = stack.root / RAN
    EngineClient(stack, options=("--network", "none")).refusal("--gpus", "1")
    assert ran.exists()
    ran.unlink()


@pytest.mark.parametrize(
    ("request_", "count"), [("1", 1), ("2", 2), ("all", 2), ("device=0", 1), ('"device=0,1"', 2)]
)
def test_gpus_alone_are_whole_cards(docker: EngineClient, request_: str, count: int) -> None:
    with docker.tenant("--gpus", request_) as container:
        assert container.found
        assert container.isolation == "exclusive"
        assert len(container.cards) == count
        assert container.nodes() == [f"nvidia{index}" for index in container.cards]
        assert container.information()["total"] >= WHOLE
        assert_untouched(container.mounts())


def test_a_card_that_is_named_is_that_card(docker: EngineClient, uuids: list[str]) -> None:
    for name in ("1", uuids[1]):
        with docker.tenant("--gpus", f"device={name}") as container:
            assert container.cards == [1]


@pytest.mark.parametrize(("request_", "count"), [("all", 2), ("device=0", 1)])
def test_gpus_with_a_quota_are_shares_of_as_many(
    docker: EngineClient, request_: str, count: int
) -> None:
    """How docker hands over each form of a request is shown above: a quota changes none of it."""
    with docker.tenant("--gpus", request_, *MEMORY) as container:
        assert container.found
        assert container.isolation == "interposer"
        assert container.nodes() == [f"nvidia{index}" for index in container.cards]
        assert len(container.cards) == count
        assert container.information()["total"] == 4 * GIB
        over = container.tenant.ask(f"alloc {4 * GIB}")
        assert over["result"] == "CUDA_ERROR_OUT_OF_MEMORY"


def test_a_share_of_a_card_that_is_named_is_of_that_card(
    docker: EngineClient, uuids: list[str]
) -> None:
    with docker.tenant("--gpus", f"device={uuids[1]}", *MEMORY) as container:
        assert container.cards == [1]


def test_gpus_1_is_any_card_that_is_free(docker: EngineClient) -> None:
    with (
        docker.tenant("-e", "GPUSHARE_DEVICES=0", *MEMORY) as first,
        docker.tenant("--gpus", "1") as whole,
    ):
        assert (first.cards, whole.cards) == ([0], [1])


def test_whole_cards_are_refused_where_they_are_shared(
    docker: EngineClient, uuids: list[str]
) -> None:
    with docker.tenant("-e", "GPUSHARE_DEVICES=0", *MEMORY) as first:
        for request_ in ("2", "all", f"device={uuids[0]}"):
            said = docker.refusal("--gpus", request_)
            assert "docker run --gpus: cannot be allocated: " in said
            assert f"card 0 is shared by {first.tenant.name}" in said
            assert "add -e GPUSHARE_MEMORY=4GiB" in said


def test_a_mig_instance_that_is_not_there_is_refused_by_its_name(docker: EngineClient) -> None:
    for part in ("0:1", "MIG-7c1e2f30-8a4b-5d6c-9e0f-1a2b3c4d5e6f"):
        said = docker.refusal("--gpus", f"device={part}", *MEMORY)
        assert f"card {part} does not exist" in said


def test_a_card_that_is_not_there_is_refused_by_its_name(docker: EngineClient) -> None:
    assert "card 7 does not exist" in docker.refusal("--gpus", "device=7")
    assert "3 cards are requested" in docker.refusal("--gpus", "3")


def test_a_count_and_gpus_that_differ_are_refused(docker: EngineClient) -> None:
    said = docker.refusal("--gpus", "1", "-e", "GPUSHARE_COUNT=2")
    assert "env GPUSHARE_COUNT=2: conflicts with docker run --gpus: different numbers" in said


def test_the_engines_variables_are_not_left_in_and_the_callers_are(docker: EngineClient) -> None:
    request_ = 'device=1,"capabilities=compute,utility"'
    with docker.tenant("--gpus", request_, "-e", "NVIDIA_VISIBLE_DEVICES=all") as container:
        variables = container.environment()
        visible = [entry for entry in variables if entry.startswith("NVIDIA_VISIBLE_DEVICES=")]
        assert visible == ["NVIDIA_VISIBLE_DEVICES=all"]
        assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in variables
        assert container.cards == [1]


def test_visible_devices_of_an_image_alone_ask_nothing(docker: EngineClient) -> None:
    # A probe without a driver ends at once, and its row with it.
    busybox = find("busybox")
    options = ("-e", "NVIDIA_VISIBLE_DEVICES=all", "-v", f"{busybox}:/bin/busybox:ro")
    with docker.created(*options, command=("/bin/busybox", "sleep", "600")) as identity:
        assert docker.call("start", identity).returncode == 0
        row = docker.rows()[identity]
        assert row["state"] == "none"
        assert "add -e GPUSHARE_MEMORY=4GiB" in row["reason"]


def test_it_gets_them_again_when_it_is_started_again(docker: EngineClient) -> None:
    with docker.created("--gpus", "1") as identity:
        for _ in range(2):
            started = docker.call("start", "--attach", identity)
            assert started.returncode == 0
            assert json.loads(started.stdout.splitlines()[0])["code"] == 0


def test_other_hooks_are_kept(docker: EngineClient) -> None:
    """Docker's own stands beside NVIDIA's, and without it a container has no network."""
    with docker.tenant("--gpus", "1") as container:
        inspected = json.loads(docker.call("inspect", container.tenant.name).stdout)[0]
        key = inspected["NetworkSettings"]["SandboxKey"]
        argv = docker.stack.argv("/usr/bin/stat", "--format", "%i", key)
        inode = int(subprocess.run(argv, check=True, capture_output=True).stdout)
        assert inode == Path(f"/proc/{container.row['pid']}/ns/net").stat().st_ino


@pytest.mark.parametrize(
    ("reservation", "count", "variables", "isolation"),
    [
        ({"driver": "nvidia", "count": 1}, 1, {}, "exclusive"),
        ({"count": "all"}, 2, {}, "exclusive"),
        ({"driver": "nvidia", "device_ids": ["1"]}, 1, {}, "exclusive"),
        ({"count": "all"}, 2, {"GPUSHARE_MEMORY": "4GiB"}, "interposer"),
    ],
)
def test_compose_reserves_devices(
    docker: EngineClient,
    reservation: dict[str, Any],
    count: int,
    variables: dict[str, str],
    isolation: str,
) -> None:
    with docker.composed({**reservation, "capabilities": ["gpu"]}, variables) as row:
        assert (len(row["cards"]), row["isolation"]) == (count, isolation)
        if "device_ids" in reservation:
            assert [card["index"] for card in row["cards"]] == [1]


@pytest.mark.parametrize(
    ("variables", "isolation"),
    [((), "exclusive"), (("--env", "GPUSHARE_MEMORY=4GiB"), "interposer")],
)
def test_ctr_passes_a_card_by_a_hook_of_containerds(
    docker: EngineClient, variables: tuple[str, ...], isolation: str
) -> None:
    name = f"ctr-{isolation}"
    launcher = str(docker.stack.installation.launcher)
    options = ("--rm", "--runc-binary", launcher, "--gpus", "1", *variables)
    argv = ["ctr", "run", *options, f"docker.io/library/{image.TAG}", name, image.PROGRAM]
    with ProbeTenant(name, argv, docker.environment) as tenant:
        assert tenant.start()["code"] == 0
        row = docker.rows()[name]
        assert ([card["index"] for card in row["cards"]], row["isolation"]) == ([1], isolation)
