# SPDX-License-Identifier: Apache-2.0
"""A bundle on a file system that does not answer holds up its own container, and nothing else."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.system.waiting import wait_until

from .container import GIB, RuntimeContainer, RuntimeNamespace
from .fuse import StallingFolder


@pytest.mark.gate
def test_a_bundle_that_does_not_answer_delays_no_other_create(own: RuntimeNamespace) -> None:
    stuck, other = RuntimeContainer(own, "runc"), RuntimeContainer(own, "runc")
    stuck.config["root"]["path"] = str(stuck.rootfs)
    folder = own.stack.root / "stalling"
    folder.mkdir()
    inside = stuck.through.program[:-1]
    text = json.dumps(stuck.config).encode()
    slow = StallingFolder(folder, "config.json", text, inside)
    try:
        with subprocess.Popen(
            stuck.argv("run", "--bundle", str(folder), stuck.id),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=own.stack.environment,
        ) as launcher:
            wait_until(slow.stalled.is_set)
            with other.started() as tenant:
                assert launcher.poll() is None, "it was to wait for its bundle"
                assert tenant.ask("info")["total"] == GIB
                own.client.set(other.id, memory="2GiB")
            slow.abort()
            _, said = launcher.communicate(timeout=60)
        assert launcher.returncode != 0
        assert b"gpushare: " in said
    finally:
        slow.close()
    own.assert_empty()
