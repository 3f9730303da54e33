# SPDX-License-Identifier: Apache-2.0
"""The device rules of a container: exact, and all in its spec, from which they are written anew.

No module is behind the simulated card's node, so opening it fails either way: with ENXIO where the
cgroup lets the container at it, with EPERM where it does not.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.stack import Stack
from tests.stack.bundle import Bundle, busybox

BUSYBOX = "/bin/busybox"
LET, KEPT_OUT = "No such device or address", "Operation not permitted"


@pytest.fixture
def running(stack: Stack) -> Iterator[Bundle]:
    """A container with a share, and a node of another card that it made itself."""
    bundle = Bundle(
        stack,
        quota={"memory": "4GiB"},
        args=(BUSYBOX, "sleep", "1000"),
        files=busybox(),
    )
    capabilities = bundle.config["process"]["capabilities"]
    for kind in ("bounding", "effective", "permitted"):
        capabilities[kind] = [*capabilities.get(kind, []), "CAP_MKNOD"]
    bundle.save()
    bundle.detach()
    yield bundle
    bundle.remove()


def inside(bundle: Bundle, *words: str) -> str:
    """Run busybox in the container; return what it says on stderr."""
    argv = bundle.argv("exec", bundle.id, BUSYBOX, *words)
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, env=bundle.stack.environment
    )
    return done.stderr


@pytest.mark.gate
def test_a_share_is_let_at_its_own_nodes_and_no_other(running: Bundle) -> None:
    assert LET in inside(running, "cat", "/dev/nvidia0")
    assert LET in inside(running, "cat", "/dev/nvidiactl")
    refused = inside(running, "mknod", "/tmp-other", "c", "195", "7") + inside(
        running, "cat", "/tmp-other"
    )
    assert KEPT_OUT in refused
