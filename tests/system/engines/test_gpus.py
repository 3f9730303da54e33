# SPDX-License-Identifier: Apache-2.0
"""An engine's own options for GPUs: NVIDIA's hook of docker's, and CDI devices.

Docker before 28.3 does `--gpus` by a hook and a variable; it has CDI from 25 on. The simulated
driver shows both cards wherever it is: the nodes say which were passed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.stack import Stack
from tests.stack.distribution import DEBIAN13, HOST, Distribution

from .gpus import RAN, EngineClient, assert_untouched, inside, stand_in
from .podman import Podman

GIB = 1 << 30
WHOLE = 139 * GIB
MEMORY = ("-e", "GPUSHARE_MEMORY=4GiB")
CDI_HOOK = "/usr/bin/nvidia-cdi-hook"


class GpuRequest(NamedTuple):
    """How cards are asked for, of which engine of which distribution."""

    engine: str
    distribution: Distribution = HOST

    @property
    def is_cdi(self) -> bool:
        return self.engine == "podman" or self.distribution is DEBIAN13

    def options(self, card: str) -> tuple[str, ...]:
        """Return the options that ask for one card by its name, or for `all`."""
        if self.is_cdi:
            return ("--device", f"nvidia.com/gpu={card}")
        return ("--gpus", card if card == "all" else f"device={card}")


DOCKER = pytest.param(GpuRequest("docker"), id="docker-gpus")
PODMAN = pytest.param(GpuRequest("podman"), id="podman-cdi")
DOCKER_26 = pytest.param(
    GpuRequest("docker", DEBIAN13), marks=pytest.mark.needs("debian13"), id="docker-cdi"
)


@pytest.fixture(scope="module", params=[DOCKER, PODMAN, DOCKER_26])
def way(request: pytest.FixtureRequest) -> GpuRequest:
    found: GpuRequest = request.param
    return found


@pytest.fixture(scope="module")
def engine(way: GpuRequest) -> Iterator[EngineClient]:
    """Two cards, and an engine that runs a hook of NVIDIA's where gpushare does not."""
    with Stack(cards=2, distribution=way.distribution) as stack:
        if way.is_cdi:
            specify(stack)
        else:
            stand_in(stack)
        stack.start_daemon()
        if way.engine == "podman":
            argv = [*Podman(stack).argv(), "--runtime=gpushare"]
            yield EngineClient(stack, argv, ("--network=none", f"--cgroup-parent=/{stack.cgroup}"))
            return
        (stack.root / "daemon.json").write_text(json.dumps({"features": {"cdi": way.is_cdi}}))
        stack.start_containerd().prepare(stack.installation.probe)
        stack.start_docker().prepare(stack.installation.probe)
        yield EngineClient(stack)


def specify(stack: Stack) -> None:
    """Give the engines the simulated driver's CDI spec, with a hook as nvidia-ctk writes it.

    Where that is run, it leaves the file RAN in the stack's folder. A second vendor's device is
    there too.
    """
    document = json.loads(stack.cdi.read_text())
    args = ["nvidia-cdi-hook", "update-ldcache"]
    hook = {"hookName": "createContainer", "path": CDI_HOOK, "args": args}
    document["containerEdits"]["hooks"] = [hook]
    document["containerEdits"]["env"] = ["NVIDIA_VISIBLE_DEVICES=void"]
    node = {"path": "/dev/npu0", "type": "c", "major": 1, "minor": 3}
    edits = {"env": ["NPU=0"], "deviceNodes": [node]}
    devices = [{"name": "0", "containerEdits": edits}]
    other = {"cdiVersion": "0.5.0", "kind": "example.com/npu", "devices": devices}
    (stack.root / "nvidia.json").write_text(json.dumps(document))
    (stack.root / "example.json").write_text(json.dumps(other))
    inside(
        stack,
        f"""
        mkdir -p /etc/cdi
        cp '{stack.root}/nvidia.json' '{stack.root}/example.json' /etc/cdi/
        printf '#!/bin/sh\\n: >"{stack.root / RAN}"\\n' >{CDI_HOOK}
        chmod 755 {CDI_HOOK}
        """,
    )


@pytest.mark.gate
@pytest.mark.parametrize(("card", "count"), [("1", 1), ("all", 2)])
def test_cards_alone_are_whole_and_with_a_quota_shares_of_as_many(
    engine: EngineClient, way: GpuRequest, card: str, count: int
) -> None:
    indices = [1] if count == 1 else [0, 1]
    with engine.tenant(*way.options(card)) as container:
        assert container.found
        assert (container.isolation, container.cards) == ("exclusive", indices)
        assert container.nodes() == [f"nvidia{index}" for index in indices]
        assert container.information()["total"] >= WHOLE
        assert_untouched(container.mounts())
    with engine.tenant(*way.options(card), *MEMORY) as container:
        assert container.found
        assert (container.isolation, container.cards) == ("interposer", indices)
        assert container.nodes() == [f"nvidia{index}" for index in indices]
        assert container.information()["total"] == 4 * GIB
        over = container.tenant.ask(f"alloc {4 * GIB}")
        assert over["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert not (engine.stack.root / RAN).exists(), "NVIDIA's own hook was run"


def test_the_engines_edits_are_not_left_in_and_those_of_others_are(
    engine: EngineClient, way: GpuRequest
) -> None:
    others = ("-e", "NVIDIA_VISIBLE_DEVICES=all")
    if way.is_cdi:
        others = ("--device", "example.com/npu=0")
    with engine.tenant(*way.options("1"), *others, *MEMORY) as container:
        variables = container.environment()
        visible = [entry for entry in variables if entry.startswith("NVIDIA_VISIBLE_DEVICES=")]
        if way.is_cdi:
            assert "NPU=0" in variables
            assert visible == []
            assert Path(f"/proc/{container.row['pid']}/root/dev/npu0").is_char_device()
        else:
            assert visible == ["NVIDIA_VISIBLE_DEVICES=all"]
        # The simulated driver lies beneath the interposer library alone.
        real = [path for path in container.mounts() if path.endswith("/libcuda.so.1")]
        assert "/.gpushare/driver/libcuda.so.1" in real
        assert container.information()["total"] == 4 * GIB
