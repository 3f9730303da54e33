# SPDX-License-Identifier: Apache-2.0
"""Pods of a real containerd 2.x, whose files have version 2 or 3.

Both versions of the files are registered by `gpushare runtime configure`: in the last file of
version 2 with a CRI section, and in a drop-in beside those of version 3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.stack import Stack
from tests.stack.distribution import DEBIAN14
from tests.system.waiting import wait_until

from .node import CriNode
from .slices import GIB, NO_DRIVER, allocated, assert_slice, probing

FILES = {2: "10-cri.toml", 3: "99-gpushare.toml"}

pytestmark = pytest.mark.needs("debian14")


@pytest.fixture(scope="module", params=sorted(FILES))
def node(request: pytest.FixtureRequest) -> Iterator[CriNode]:
    with Stack(distribution=DEBIAN14) as stack:
        stack.start_daemon()
        with CriNode(stack, version=request.param) as made:
            yield made


def test_the_default_handler_keeps_its_settings_and_ours_has_them(node: CriNode) -> None:
    told = node.cri.call("Version")
    assert int(told["runtime_version"].lstrip("v").partition(".")[0]) >= 2
    version = int(node.config.read_text().splitlines()[0].removeprefix("version = "))
    files = {path.name: path.read_text() for path in (node.root / "conf.d").iterdir()}
    written = [name for name, text in files.items() if "runtimes.gpushare]" in text]
    assert written == [FILES[version]]
    config = json.loads(node.cri.call("Status", verbose=True)["info"]["config"])
    handlers = config["containerd"]["runtimes"]
    assert handlers["gpushare"]["options"] == {
        "BinaryName": str(node.stack.installation.launcher),
        "Root": f"{node.root}/runc",
    }
    assert handlers["runc"]["options"]["Root"] == f"{node.root}/runc"
    with node.pod({"memory": "4GiB"}, handler="runc") as pod:
        assert pod.run("train").probe().status == NO_DRIVER


@pytest.mark.parametrize("handler", ["gpushare", ""], ids=["runtime-class", "default"])
def test_a_pod_gets_its_quota_and_outlives_the_restart_of_a_registration(
    node: CriNode, handler: str
) -> None:
    with node.pod({"memory": "4GiB"}, handler=handler) as pod:
        container = pod.run("train")
        node.restart()
        assert_slice(container.probe(*probing(4 * GIB)).said, 4 * GIB)
        assert allocated(node.stack) == {container.full_name: 4 * GIB}
        container.remove()
        wait_until(lambda: allocated(node.stack) == {})
