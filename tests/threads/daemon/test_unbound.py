# SPDX-License-Identifier: Apache-2.0
"""Containers that their launcher binds, and those that it was to bind."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from gpushare import abi
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.service.control_server import find_operation
from gpushare.protocol import HostProcessGrant
from tests.system.waiting import wait_until
from tests.unit.daemon.fakes import FakeDaemon
from tests.unit.daemon.operations import entry_of, grant, opened
from tests.unit.daemon.test_unbound import made_by, pidfd_of, request


def is_unbound(node: FakeDaemon, tenant: HostProcessGrant) -> int:
    page = grant(node, tenant).read_bytes()
    return page[abi.GRANT_HEADER_UNBOUND]


def test_a_launcher_binds_its_child_by_a_pidfd(
    node: FakeDaemon, program: subprocess.Popen[bytes]
) -> None:
    tenant = made_by(node, os.getpid())
    assert is_unbound(node, tenant)
    with pidfd_of(program.pid) as pidfd:
        asked = request(tenant, pidfd)
        for _ in range(2):  # the launcher repeats it after a daemon that ended over it
            find_operation(asked, node.operations).run(asked, node)
    record = entry_of(node, tenant)
    assert (record.state, record.pid) == ("bound", program.pid)
    assert not is_unbound(node, tenant)


@pytest.mark.parametrize("later", [False, True])
def test_an_init_is_killed_only_if_it_is_found_abandoned_twice(
    node: FakeDaemon,
    program: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    later: bool,
) -> None:
    """crun deletes the pipe of a container that it starts before it writes to it."""
    tenant = opened(node, memory="1GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    monkeypatch.setattr(release, "_STRANDED_SECONDS", 0.0)
    looks = [True, later]

    def is_stranded(_: int) -> bool:
        return looks.pop(0)

    monkeypatch.setattr(processes, "is_stranded", is_stranded)
    loop = threading.Thread(target=node.loop.run)
    loop.start()
    try:
        release.reconcile_tenants(node, node.freezer)
        wait_until(lambda: not looks)
        node.decide.run(lambda: None)
    finally:
        node.loop.stop()
        loop.join()
    assert (program.poll() is None) == (not later)
