# SPDX-License-Identifier: Apache-2.0
"""The device rules of a container: exact, and all in its spec, from which they are written anew.

No module is behind the simulated card's node, so opening it fails either way: with ENXIO where the
cgroup lets the container at it, with EPERM where it does not.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.program import Missing, find

BUSYBOX = "/bin/busybox"
LET, KEPT_OUT = "No such device or address", "Operation not permitted"


@pytest.fixture
def running(stack: Stack) -> Iterator[Bundle]:
    """A container with a share, and a node of another card that it made itself."""
    busybox = Path(find("busybox")).read_bytes()
    bundle = Bundle(
        stack,
        quota={"memory": "4GiB"},
        args=(BUSYBOX, "sleep", "1000"),
        files={BUSYBOX: busybox},
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


def cgroup(bundle: Bundle) -> Path:
    """Return the container's folder in the hierarchy of devices."""
    folder = Path("/sys/fs/cgroup/devices") / bundle.stack.cgroup / bundle.id
    if not folder.is_dir():
        raise Missing("device rules are files in cgroup v1 only: boot with v1, or the hybrid")
    return folder


@pytest.mark.gate
def test_a_share_is_let_at_its_own_nodes_and_no_other(running: Bundle) -> None:
    assert LET in inside(running, "cat", "/dev/nvidia0")
    assert LET in inside(running, "cat", "/dev/nvidiactl")
    refused = inside(running, "mknod", "/tmp-other", "c", "195", "7") + inside(
        running, "cat", "/tmp-other"
    )
    assert KEPT_OUT in refused


def test_the_card_stays_when_the_device_rules_are_written_anew(running: Bundle) -> None:
    """As systemd does at a daemon-reload: deny all, then what the spec says."""
    folder = cgroup(running)
    (folder / "devices.deny").write_text("a")
    assert KEPT_OUT in inside(running, "cat", "/dev/nvidia0")
    for rule in running.read()["linux"]["resources"]["devices"]:
        if rule["allow"]:
            numbers = [rule.get(key, "*") for key in ("major", "minor")]
            line = f"{rule.get('type', 'a')} {numbers[0]}:{numbers[1]} {rule['access']}"
            (folder / "devices.allow").write_text(line)
    assert LET in inside(running, "cat", "/dev/nvidia0")
    assert LET in inside(running, "cat", "/dev/nvidiactl")


def test_the_card_stays_when_the_runtime_updates_the_container(running: Bundle) -> None:
    done = running.call("update", "--pids-limit", "100")
    assert done.returncode == 0, done.stderr
    assert LET in inside(running, "cat", "/dev/nvidia0")
