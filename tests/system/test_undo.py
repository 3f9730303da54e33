# SPDX-License-Identifier: Apache-2.0
"""gpushare-undo on a machine from which gpushare was removed: it needs nothing of it.

The order of docs/how-to/undo.md, first undo and then pip, is run by test_readme.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.engines import find
from gpushare.install import InstallSource
from gpushare.setup import InstallRecord, plan
from gpushare.verify import image
from tests.unit.engines import machine as engines

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


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """An image with the files of engines, as Debian has them."""
    for name in ("containerd-debian12", "podman-debian"):
        engines.make(name, tmp_path)
    return tmp_path


def of_containerd(text: str) -> str:
    return f'{text}\n[plugins."io.containerd.monitor.v1.cgroups"]\n  no_prometheus = true\n'


def of_podman(text: str) -> str:
    return text.replace("[engine]\n", '[engine]\n  cgroup_manager = "cgroupfs"\n')


#: An engine's file, an edit of an administrator, and a command that reads the file. Docker reads
#: an edited file in the test above.
ENGINES: dict[str, tuple[str, Callable[[str], str], list[str]]] = {
    "containerd": (
        "etc/containerd/config.toml",
        of_containerd,
        ["containerd", "--config", "{file}", "config", "dump"],
    ),
    "podman": (
        "etc/containers/containers.conf.d/99-gpushare.conf",
        of_podman,
        ["env", "CONTAINERS_CONF={file}", "podman", "info"],
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engine_accepts_what_is_left_of_an_edited_file(engine: str, elsewhere: Path) -> None:
    name, edit, command = ENGINES[engine]
    made, file = InstallRecord(elsewhere), elsewhere / name
    for step in plan._registration(made, engine, find(engine).locate(elsewhere, None)):
        if step.do is not None:
            step.do()
    file.write_text(edit(file.read_text()))
    argv = [word.format(file=file) for word in command]
    subprocess.run(argv, check=True, capture_output=True)
    subprocess.run(["sh", elsewhere / UNDO.lstrip("/"), "--root", elsewhere], check=True)
    assert "gpushare" not in file.read_text()
    subprocess.run(argv, check=True, capture_output=True)
