# SPDX-License-Identifier: Apache-2.0
"""CDI devices that engines resolve themselves: docker 26 with features.cdi, compose, podman 4, 5.

The simulated driver shows both cards wherever it is: which were passed the nodes say, and a probe
that is on card 1 is told so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.verify import image
from tests.stack import Stack
from tests.stack.distribution import DEBIAN13, HOST, Distribution

from .gpus import EngineClient, assert_untouched, inside

GIB = 1 << 30
WHOLE = 139 * GIB
MEMORY = ("-e", "GPUSHARE_MEMORY=4GiB")
HOOK = "/usr/bin/nvidia-cdi-hook"
RAN = "hook-ran"

each_engine = pytest.mark.parametrize(
    ("distribution", "engine"),
    # Docker has CDI from 25 on; podman 4 takes --gpus and does nothing with it.
    [(HOST, "podman"), (DEBIAN13, "docker"), (DEBIAN13, "podman")],
    ids=["podman-4", "docker-26", "podman-5"],
    indirect=True,
    scope="module",
)
debian13 = pytest.mark.parametrize(
    "distribution", [DEBIAN13], ids=["debian13"], indirect=True, scope="session"
)


def specify(stack: Stack) -> None:
    """Give the engines the simulated driver's CDI spec, with a hook as nvidia-ctk writes it.

    Where that is run, it leaves the file RAN in the stack's folder. A second vendor's device has a
    hook too.
    """
    document = json.loads(stack.cdi.read_text())
    hook = {
        "hookName": "createContainer",
        "path": HOOK,
        "args": ["nvidia-cdi-hook", "update-ldcache"],
    }
    document["containerEdits"]["hooks"] = [hook]
    document["containerEdits"]["env"] = ["NVIDIA_VISIBLE_DEVICES=void"]
    other = {
        "cdiVersion": "0.5.0",
        "kind": "example.com/npu",
        "devices": [
            {
                "name": "0",
                "containerEdits": {
                    "env": ["NPU=0"],
                    "deviceNodes": [{"path": "/dev/npu0", "type": "c", "major": 1, "minor": 3}],
                },
            }
        ],
    }
    (stack.root / "nvidia.json").write_text(json.dumps(document))
    (stack.root / "example.json").write_text(json.dumps(other))
    inside(
        stack,
        f"""
        mkdir -p /etc/cdi
        cp '{stack.root}/nvidia.json' '{stack.root}/example.json' /etc/cdi/
        printf '#!/bin/sh\\n: >"{stack.root / RAN}"\\n' >{HOOK}
        chmod 755 {HOOK}
        """,
    )


@pytest.fixture(scope="module")
def stack(distribution: Distribution) -> Iterator[Stack]:
    with Stack(cards=2, distribution=distribution) as made:
        specify(made)
        made.start_daemon()
        yield made


@pytest.fixture(scope="module")
def docker(stack: Stack) -> EngineClient:
    (stack.root / "daemon.json").write_text(json.dumps({"features": {"cdi": True}}))
    stack.start_containerd()
    stack.start_docker().prepare(stack.installation.probe)
    return EngineClient(stack)


@pytest.fixture(scope="module")
def podman(stack: Stack) -> EngineClient:
    # An overlay on the place's own would need its /dev; raising a limit needs CAP_SYS_RESOURCE.
    storage = ("--root", f"{stack.root}/podman", "--runroot", f"{stack.root}/podman-run")
    made = EngineClient(
        stack,
        argv=(
            *("podman", *storage, "--storage-driver", "vfs", "--events-backend", "file"),
            *("--cgroup-manager", "cgroupfs", "--runtime", str(stack.installation.launcher)),
        ),
        options=(
            *("--network", "none", "--cgroup-parent", f"/{stack.cgroup}"),
            *("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"),
        ),
    )
    loaded = made.call("load", data=image.build(stack.installation.probe))
    assert loaded.returncode == 0, loaded.stderr.decode()
    return made


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest, stack: Stack) -> EngineClient:  # noqa: ARG001 - ends before it
    found: EngineClient = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def not_run(stack: Stack) -> Iterator[None]:
    yield
    assert not (stack.root / RAN).exists(), "NVIDIA's own hook was run"


def is_podman(engine: EngineClient) -> bool:
    return engine.argv[0] == "podman"


@each_engine
def test_the_hook_is_the_one_that_the_engine_itself_would_run(
    engine: EngineClient, stack: Stack
) -> None:
    """Else that it was not run would show nothing."""
    launcher = str(stack.installation.launcher)
    plain = EngineClient(
        stack,
        argv=["runc" if word == launcher else word for word in engine.argv],
        options=[word for word in engine.options if word != "--runtime=gpushare"],
    )
    with plain.tenant("--device", "nvidia.com/gpu=0") as container:
        assert container.found
    (stack.root / RAN).unlink()


@each_engine
@pytest.mark.parametrize(("device", "count"), [("0", 1), ("1", 1), ("all", 2)])
def test_a_device_alone_is_whole_cards(engine: EngineClient, device: str, count: int) -> None:
    with engine.tenant("--device", f"nvidia.com/gpu={device}") as container:
        assert container.found
        assert container.isolation == "exclusive"
        assert len(container.cards) == count
        assert container.nodes() == [f"nvidia{index}" for index in container.cards]
        assert container.information()["total"] >= WHOLE
        assert_untouched(container.mounts())


@each_engine
@pytest.mark.parametrize(("device", "count"), [("0", 1), ("1", 1), ("all", 2)])
def test_a_device_with_a_quota_is_shares_of_as_many(
    engine: EngineClient, device: str, count: int
) -> None:
    with engine.tenant("--device", f"nvidia.com/gpu={device}", *MEMORY) as container:
        assert container.found
        assert container.isolation == "interposer"
        assert len(container.cards) == count
        assert container.nodes() == [f"nvidia{index}" for index in container.cards]
        assert container.information()["total"] == 4 * GIB
        over = container.tenant.ask(f"alloc {4 * GIB}")
        assert over["result"] == "CUDA_ERROR_OUT_OF_MEMORY"


@each_engine
def test_an_annotation_is_a_quota_too(engine: EngineClient) -> None:
    annotation = ("--annotation", "gpushare.io/memory=4GiB")
    with engine.tenant("--device", "nvidia.com/gpu=1", *annotation) as container:
        assert container.isolation == "interposer"
        assert container.cards == [1]


@each_engine
def test_the_first_card_is_any_to_docker_and_that_one_to_podman(engine: EngineClient) -> None:
    """Docker's `--gpus 1` comes as card 0 from 28.3 on; podman's and a kubelet's mean it."""
    with engine.tenant("-e", "GPUSHARE_DEVICES=0", *MEMORY) as first:
        assert first.cards == [0]
        if is_podman(engine):
            said = engine.refusal("--device", "nvidia.com/gpu=0")
            assert "the CDI device or --device: cannot be allocated: " in said
            assert "add -e GPUSHARE_MEMORY=4GiB" in said
        else:
            with engine.tenant("--device", "nvidia.com/gpu=0") as whole:
                assert whole.cards == [1]


@each_engine
def test_the_engines_edits_are_not_left_in_and_another_vendors_are(engine: EngineClient) -> None:
    devices = ("--device", "nvidia.com/gpu=1", "--device", "example.com/npu=0")
    with engine.tenant(*devices, *MEMORY) as container:
        variables = container.environment()
        assert "NPU=0" in variables
        assert [entry for entry in variables if entry.startswith("NVIDIA_")] == []
        root = Path(f"/proc/{container.row['pid']}/root")
        assert (root / "dev/npu0").is_char_device()
        # The simulated driver lies beneath the filter alone.
        real = [path for path in container.mounts() if path.endswith("/libcuda.so.1")]
        assert "/opt/gpushare/driver/libcuda.so.1" in real
        assert container.information()["total"] == 4 * GIB


@each_engine
def test_another_vendors_device_alone_is_none_of_ours(engine: EngineClient) -> None:
    with engine.created("--device", "example.com/npu=0") as identity:
        engine.call("start", "--attach", identity)
        assert identity not in engine.rows()


@debian13
def test_podmans_gpus_name_cards(podman: EngineClient) -> None:
    with podman.tenant("--gpus", "1") as container:
        assert (container.cards, container.isolation) == ([1], "exclusive")
    with podman.tenant("--gpus", "all", *MEMORY) as container:
        assert (container.cards, container.isolation) == ([0, 1], "interposer")


@debian13
@pytest.mark.parametrize(
    ("variables", "isolation"),
    [({}, "exclusive"), ({"GPUSHARE_MEMORY": "4GiB"}, "interposer")],
)
def test_compose_reserves_devices(
    docker: EngineClient, variables: dict[str, str], isolation: str
) -> None:
    reservation = {"driver": "cdi", "device_ids": ["nvidia.com/gpu=1"], "capabilities": ["gpu"]}
    with docker.composed(reservation, variables) as row:
        assert ([card["index"] for card in row["cards"]], row["isolation"]) == ([1], isolation)
