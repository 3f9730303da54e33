# SPDX-License-Identifier: Apache-2.0
"""`kubectl gpushare` of a cluster one of whose nodes has a real gpushared and exporter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack import Stack
from tests.stack.api_server import StandInApiServer
from tests.stack.bundle import Bundle
from tests.stack.kubectl import Kubectl, put_exporter, put_node

from .scraped import EXPORTER, LOOPBACK, POD, answers, free_port
from .waiting import wait_until

GIB = 1 << 30
TOKEN = "a-token-that-only-its-clients-know"


@pytest.fixture
def kubectl(own: Stack, tmp_path: Path) -> Iterator[Kubectl]:
    """kubectl in a cluster of gpu-1, which is the stack's node, and gpu-2, which is silent."""
    file = own.root / "token"
    file.write_text(TOKEN)
    file.chmod(0o640)
    port = free_port()
    argv = [str(EXPORTER), "--socket", str(own.socket), "--listen", f"{LOOPBACK}:{port}"]
    program = own.start("exporter", [*argv, "--node", "gpu-1", "--token-file", str(file)])
    program.wait_until(lambda: answers(port))
    with StandInApiServer().running() as cluster:
        for name, address in (("gpu-1", (LOOPBACK, port)), ("gpu-2", None)):
            put_node(cluster, name, "plugin", labels={"gpu.count": "1", "gpu.product": "H200"})
            put_exporter(cluster, name, address, token=TOKEN)
        yield Kubectl(tmp_path, cluster)


def shown(own: Stack, command: str) -> list[str]:
    """Return the lines of `gpushare ls` or `ps` on the node."""
    return own.gpushare(command).stdout.splitlines()


def cells(line: str) -> list[str]:
    return re.split(r"  +", line)


@pytest.mark.needs("kubectl")
def test_the_cluster_has_the_rows_of_each_node_and_names_the_silent_one(
    own: Stack, kubectl: Kubectl
) -> None:
    quota = {"memory": "4GiB", "memory-limit": "6GiB", "cores": "30"}
    asked = {f"gpushare.io/{name}": value for name, value in quota.items()}
    bundle = Bundle(own, annotations={**POD, **asked})
    with bundle.started() as tenant:
        tenant.ask(f"alloc {GIB}")

        def is_equal() -> bool:
            of_node = shown(own, "ls")
            of_cluster = kubectl.run("gpushare", "ls").stdout.splitlines()
            return [cells(line)[1:] for line in of_cluster[:-1]] == [*map(cells, of_node)]

        wait_until(is_equal)  # a sample may fall between the two
        done = kubectl.run("gpushare", "ls")
        assert done.returncode == 4
        assert cells(done.stdout.splitlines()[-1])[:3] == ["gpu-2", "0", "H200"]
        assert done.stderr.startswith("kubectl gpushare: gpu-2: ")

        def is_used() -> bool:
            of_node = shown(own, "ps")[1]
            name, card, memory, cores, policy, _, isolation = cells(of_node)
            of_cluster = kubectl.run("gpushare", "ps", "-A").stdout.splitlines()[1]
            namespace, pod, container, node, *rest = cells(of_cluster)
            assert (f"{namespace}/{pod}/{container}", node) == (name, "gpu-1")
            assert [rest[0], rest[3], rest[5]] == [card, policy, isolation]
            assert rest[2].partition("/")[2] == cores.partition("/")[2] == "30 %"
            return rest[1] == memory

        wait_until(is_used)
        found = json.loads(kubectl.run("gpushare", "ps", "-o", "json").stdout)
        assert [one["quota_bytes"] for one in found] == [4 * GIB]
