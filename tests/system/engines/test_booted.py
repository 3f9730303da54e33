# SPDX-License-Identifier: Apache-2.0
"""Docker where systemd makes the cgroups, and sets device filters anew when it is reloaded."""

from __future__ import annotations

import subprocess

import pytest

from gpushare.client import Client
from tests.stack import Stack
from tests.system.waiting import wait_until

from .docker_client import FOUR_GIB, GIB, DockerClient, holds

BUSYBOX = ("--volume", "/usr/bin/busybox:/usr/bin/busybox:ro")


@pytest.fixture(scope="module")
def client(booted: Stack) -> DockerClient:
    booted.start_containerd()
    booted.start_docker("--default-runtime=gpushare").prepare(booted.installation.probe)
    return DockerClient(booted)


def systemctl(stage: Stack, *words: str) -> str:
    argv = stage.argv("systemctl", *words)
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def opened(client: DockerClient, name: str, node: str) -> str:
    """Open a device node in a container; return what the kernel says to that."""
    script = f"exec 3<>{node}"
    return client.call("exec", name, "busybox", "sh", "-c", script).stderr


def test_in_a_scope_of_systemds_a_quota_is_enforced_and_released(client: DockerClient) -> None:
    assert client("info", "--format", "{{.CgroupDriver}} {{.CgroupVersion}}") == "systemd 2"
    with client.background("scope", *FOUR_GIB) as name:
        identity = client("inspect", "--format", "{{.Id}}", name)
        scopes = systemctl(client.stage, "list-units", "--plain", "--no-legend", "*.scope")
        assert f"docker-{identity}.scope" in scopes
        with client.exec(name) as tenant:
            holds(tenant)
        wait_until(lambda: client.quotas() == {"scope": 4 * GIB})


def test_a_slice_that_the_user_chose(client: DockerClient) -> None:
    parent = ("--cgroup-parent", "gpu-jobs.slice")
    with client.background("sliced", *parent, *FOUR_GIB) as name, client.exec(name) as tenant:
        holds(tenant)
        [row] = Client(client.stage.socket).tenants()
        groups = client.stage.argv("cat", f"/proc/{row['pid']}/cgroup")
        said = subprocess.run(groups, check=True, capture_output=True, text=True).stdout
        assert "/gpu.slice/gpu-jobs.slice/docker-" in said


def test_the_card_stays_when_systemd_is_reloaded(client: DockerClient) -> None:
    with client.background("reloaded", *BUSYBOX, *FOUR_GIB) as name:
        # No driver serves the node here, which the kernel says once the filter has let it pass.
        assert "No such device or address" in opened(client, name, "/dev/nvidiactl")
        systemctl(client.stage, "daemon-reload")
        assert "No such device or address" in opened(client, name, "/dev/nvidiactl")
        with client.exec(name) as tenant:
            holds(tenant)
        # It is systemd's filter: without what the spec made it know, the card would be lost.
        scope = f"docker-{client('inspect', '--format', '{{.Id}}', name)}.scope"
        systemctl(client.stage, "set-property", "--runtime", scope, "DeviceAllow=")
        assert "Operation not permitted" in opened(client, name, "/dev/nvidiactl")


def test_no_node_but_the_cards_is_let_through(client: DockerClient) -> None:
    with client.background("filtered", *BUSYBOX, *FOUR_GIB) as name:
        script = "mknod /tmp/other c 195 7 && exec 3<>/tmp/other"
        said = client.call("exec", name, "busybox", "sh", "-c", script).stderr
        assert "Operation not permitted" in said


def test_a_container_is_paused_and_ended_in_its_scope(client: DockerClient) -> None:
    asking = Client(client.stage.socket)
    with client.background("held", *FOUR_GIB) as name, client.exec(name) as tenant:
        assert tenant.start()["code"] == 0
        asking.pause(name)
        # systemd writes anew what it has to say of the group; of this it says nothing.
        systemctl(client.stage, "daemon-reload")
        tenant.tell("info")
        assert "frozen 1" in events_of(client, name)
        asking.resume(name)
        assert tenant.answer("info")["total"] == 4 * GIB
        asking.stop(name, "KILL", 0)
        wait_until(lambda: client.quotas() == {})


def test_a_container_that_bypasses_the_library_is_frozen_in_its_scope(client: DockerClient) -> None:
    asking = Client(client.stage.socket)
    log = client.stage.root / "gpushared.log"
    wait_until(lambda: '"context-size-measured"' in log.read_text())
    private = ("--library", "/opt/gpushare/driver/libcuda.so.1")
    with (
        client.background("around", *FOUR_GIB) as name,
        client.background("beside", *FOUR_GIB) as beside,
        client.exec(beside) as neighbour,
        client.exec(name, probe=private) as tenant,
    ):
        assert tenant.start()["code"] == 0
        assert tenant.ask(f"alloc {9 * GIB}")["code"] == 0  # nothing refuses it
        wait_until(lambda: [one["by"] for one in asking.tenant(name)["interventions"]] == ["audit"])
        assert "frozen 1" in events_of(client, name)
        assert "frozen 0" in events_of(client, beside)
        holds(neighbour)
        asking.set(name, over_quota_action="kill")
        wait_until(lambda: client.quotas() == {"beside": 4 * GIB})
        wait_until(lambda: '"over-quota-killed"' in log.read_text())


def events_of(client: DockerClient, name: str) -> str:
    scope = f"docker-{client('inspect', '--format', '{{.Id}}', name)}.scope"
    argv = client.stage.argv("cat", f"/sys/fs/cgroup/system.slice/{scope}/cgroup.events")
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
