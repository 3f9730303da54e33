# SPDX-License-Identifier: Apache-2.0
"""gpushare-undo on a machine from which gpushare was removed: it needs nothing of it.

The order of docs/how-to/undo.md, first undo and then pip, is run by test_readme.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.install import InstallSource
from gpushare.verify import image

from .own_machine import OwnMachine
from .test_readme import PROBE, files, start_daemon
from .waiting import wait_until

UNDO = "/usr/local/sbin/gpushare-undo"
VENV = "/opt/gpushare/venv"
EDITED = {"log-level": "warn", "runtimes": {"other": {"path": "/usr/bin/runc"}}}
START = "docker run -d -i --runtime=gpushare --name"

SET_UP = "find /etc /usr/local /opt/gpushare/driver | sort; cat /etc/docker/daemon.json"


@pytest.fixture(scope="module")
def machine(
    wheel: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OwnMachine]:
    """A machine with gpushare in a virtual environment and docker; the package is removed later."""
    machine = OwnMachine(tmp_path_factory.mktemp("undo"))
    try:
        machine.run('mkdir /etc/docker && echo \'{"log-level": "warn"}\' >/etc/docker/daemon.json')
        machine.start_dockerd()
        machine.run(
            "docker load", image.build(InstallSource.of_package().libraries / "gpushare-probe")
        )
        machine.run(f"python3 -m venv {VENV} && {VENV}/bin/pip install {wheel}")
        yield machine
    finally:
        machine.close()


def reload_docker(machine: OwnMachine, *, has: bool) -> None:
    machine.run("kill -HUP $(cat /run/docker.pid)")
    listed = "docker info --format '{{.Runtimes}}'"
    wait_until(lambda: ("gpushare" in machine.run(listed)) is has)


def refusal(machine: OwnMachine) -> str:
    refused = machine.call(UNDO)
    assert refused.returncode == 3, refused
    return refused.stderr


def test_the_package_may_be_removed_first(machine: OwnMachine) -> None:
    before = files(machine)
    machine.run(f"{VENV}/bin/gpushare setup --runtime docker --simulate h200")
    start_daemon(machine)
    reload_docker(machine, has=True)
    set_up = machine.run(SET_UP)

    for name, quota in (("shares", "GPUSHARE_MEMORY=1GiB"), ("whole", "GPUSHARE_COUNT=1")):
        started = machine.run(f"{START} {name} -e {quota} {PROBE}")
        assert f"still use gpushare: {name}. They need its programs" in refusal(machine)
        # The engine stops the container with the launcher, whatever the ledger contains.
        machine.run("mv /run/gpushare/ledger /run/gpushare/aside")
        assert started[:12] in refusal(machine)
        machine.run("mv /run/gpushare/aside /run/gpushare/ledger")
        machine.run(f"docker rm --force {name}")
    assert machine.run(SET_UP) == set_up

    machine.run(f"{VENV}/bin/pip uninstall --yes gpushare-runtime && rm -r {VENV}")
    registered = json.loads(machine.run("cat /etc/docker/daemon.json"))
    registered["runtimes"] |= EDITED["runtimes"]  # an administrator's
    machine.run(f"echo '{json.dumps(registered)}' >/etc/docker/daemon.json")
    pid = machine.run("cat /run/gpushare/lock").strip()
    wait_until(lambda: machine.call(UNDO + " --dry-run").returncode == 0)
    said = machine.run(UNDO)
    assert f"do    stop gpushared (process {pid})" in said
    assert machine.call(f"test -d /proc/{pid}").returncode != 0
    assert machine.call("test -e /run/gpushare").returncode != 0
    assert json.loads(machine.run("cat /etc/docker/daemon.json")) == EDITED
    reload_docker(machine, has=False)
    machine.run('echo \'{"log-level": "warn"}\' >/etc/docker/daemon.json')
    assert files(machine) == before
