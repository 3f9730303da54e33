# SPDX-License-Identifier: Apache-2.0
"""Parts of two versions at the same time, as on a node that is being upgraded or rolled back.

The other version, "9.", has pages of another layout, and adds a key to each message. What works
with what is in docs/how-to/upgrade.md.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpushare.protocol import ClaimDevice, ClaimStatus, PreparedClaim
from gpushare.verify import ProbeTenant
from tests.stack.bundle import Bundle
from tests.stack.kubelet import StandInKubelet
from tests.stack.node_agent import NodeAgent, set_mode
from tests.stack.program import ServiceProcess
from tests.system.waiting import wait_until

from .conftest import TwoVersions
from .load import BackgroundLoad

GIB = 1 << 30
RESOURCE = "gpushare.io/memory-gib"
COMMANDS = (("ls", "--json"), ("ps", "--json"), ("metrics",))


class VariantAgent(NodeAgent):
    """gpushare-node of the other version."""

    def __init__(self, node: TwoVersions) -> None:
        super().__init__(node.stack)
        self._node = node

    def start(self) -> ServiceProcess:
        words = ("--socket", str(self._node.stack.socket), "--kubelet-dir", str(self.folder))
        argv = self._node.variant.argv("gpushare.kubernetes.__main__", *words)
        self.process = self._node.stack.start("gpushare-node", argv)
        return self.process


@contextmanager
def a_pods_container(kubelet: StandInKubelet, node: TwoVersions) -> Iterator[BackgroundLoad]:
    """A container with 2 GiB that the kubelet has allocated."""
    given = kubelet.admit(RESOURCE, 2)
    bundle = Bundle(node.stack)
    for mount in given.mounts():
        bundle.config["mounts"].append(
            {
                "destination": mount["container_path"],
                "source": mount["host_path"],
                "type": "bind",
                "options": ["rbind", "ro"],
            }
        )
    bundle.save()
    with BackgroundLoad(bundle) as load:
        yield load
    given.release()


@pytest.mark.parametrize("is_newer", [False, True], ids=["older-node-agent", "newer-node-agent"])
def test_a_pod_gets_its_share_from_a_gpushare_node_of_another_version(
    both: TwoVersions, is_newer: bool
) -> None:
    node = both
    set_mode(node.stack, "plugin")
    versions = (node.other, node.ours)
    agent = VariantAgent(node) if is_newer else NodeAgent(node.stack)
    if is_newer:
        versions = (node.ours, node.other)
    with agent, StandInKubelet(agent.folder) as kubelet:
        node.replace_daemon(versions[0])
        process = agent.start()
        wait_until(lambda: kubelet.allocatable(RESOURCE) > 100)
        with a_pods_container(kubelet, node) as first:
            first.works()
            assert node.allocated() == 2 * GIB
            # gpushared becomes the version of gpushare-node, which is the same process.
            node.replace_daemon(versions[1])
            first.works()
            with a_pods_container(kubelet, node) as second:
                second.works()
                assert node.allocated() == 4 * GIB
        assert process.process.poll() is None, agent.log()
    wait_until(lambda: node.allocated() == 0)


@pytest.mark.parametrize("is_newer", [False, True], ids=["older-launcher", "newer-launcher"])
def test_a_container_starts_by_a_launcher_of_another_version(
    both: TwoVersions, is_newer: bool
) -> None:
    """While setup has switched the launcher and gpushared has not restarted, or the reverse."""
    node = both
    daemon, launcher = (node.ours, node.other) if is_newer else (node.other, node.ours)
    node.replace_daemon(daemon)
    started = str(launcher.root / "bin/gpushare-runtime")
    bundle = Bundle(node.stack, quota={"memory": "1GiB"})
    words = bundle.argv("run", "--bundle", str(bundle.path), bundle.id, runtime=started)
    tenant = ProbeTenant(bundle.id, words, node.stack.environment)
    try:
        assert tenant.start()["code"] == 0
        assert tenant.ask("info")["total"] == node.allocated() == GIB
    finally:
        tenant.close()
        bundle.remove()
    wait_until(lambda: node.allocated() == 0)


def test_a_prepared_claim_is_the_same_to_both_versions(both: TwoVersions) -> None:
    node = both
    set_mode(node.stack, "dra")
    device: ClaimDevice = {
        "request": "gpu",
        "card": node.client.cards()[0]["uuid"],
        "memory_bytes": 4 * GIB,
        "cores": 40,
        "share": "s",
    }

    def prepare() -> PreparedClaim:
        return node.client.prepare_claim(
            "claim-1", namespace="ai", name="a", pods=["pod-1"], devices=[device]
        )

    prepared, listed = prepare(), node.client.claims()
    for daemon in (node.other, node.ours):
        node.replace_daemon(daemon)
        assert [known(row) for row in node.client.claims()] == [known(row) for row in listed]
        assert prepare() == prepared
        assert node.allocated() == 4 * GIB
    node.replace_daemon(node.other)
    node.client.unprepare_claim("claim-1")
    assert node.allocated() == 0


def known(row: ClaimStatus) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith("added_")}


def test_commands_and_metrics_work_across_versions(both: TwoVersions) -> None:
    node = both
    environment = node.stack.environment
    with BackgroundLoad(Bundle(node.stack, quota={"memory": "1GiB"})) as load:
        for daemon in (node.ours, node.other):
            node.replace_daemon(daemon)
            load.works()
            for words in COMMANDS:
                for command in (node.stack.cli, node.variant.argv("gpushare.cli")):
                    text = answer([*command, *words], environment)
                    if "--json" in words:
                        assert json.loads(text)
                    else:
                        assert "gpushare_container_memory_quota_bytes{" in text


def answer(argv: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
