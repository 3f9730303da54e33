# SPDX-License-Identifier: Apache-2.0
"""Engines with each way to bind: by the launcher over runc and crun, by the createRuntime hook.

The launcher is the parent of the low-level runtime: what an engine's shim sees of it (exit status,
terminal, pid file, signals, whose child the container's process is) must be as with runc alone.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import yaml

from gpushare.client import Client
from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.distribution import DEBIAN13, HOST, Cgroups, Distribution
from tests.system.waiting import wait_until

from .docker_client import FOUR_GIB, GIB, PLAIN, DockerClient, holds
from .node import CriNode
from .podman import BUSYBOX, Podman
from .slices import allocated, assert_slice, parse, probing
from .test_containerd import ANNOTATION, Ctr, import_shell
from .test_containerd import holds as holds_in_ctr


class Way(NamedTuple):
    """What binds a container, above which low-level runtime."""

    bind: str
    runtime: str = "runc"

    @property
    def cgroups(self) -> Cgroups:
        """crun refuses v1 and v2 together, and 1.8 needs CAP_SYS_RESOURCE for v2."""
        return "v1" if self.runtime == "crun" else "machine"


WAYS = (Way("launcher"), Way("hook"), Way("launcher", "crun"))
#: The hook is runc's to run, which tests/system/life shows under each distribution's: of the
#: engines, which see what they see of runc alone, one distribution's are enough for it.
COURSES = (
    *((HOST, way) for way in WAYS),
    *((DEBIAN13, way) for way in WAYS if way.bind != "hook"),
)
pytestmark = pytest.mark.parametrize(
    ("distribution", "way"),
    COURSES,
    indirect=True,
    ids=lambda each: each.name if isinstance(each, Distribution) else "-".join(each),
)
SHELL = ("--volume", "/usr/bin/busybox:/usr/bin/busybox:ro")
IN_SHELL = ("gpushare-probe", "/usr/bin/busybox", "sh", "-c")


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@pytest.fixture(scope="module")
def own(distribution: Distribution, way: Way) -> Iterator[Stack]:
    with Stack(distribution=distribution, cgroups=way.cgroups, runtime=way.runtime) as stack:
        settings = yaml.safe_load(stack.config.read_text())
        stack.config.write_text(yaml.safe_dump({**settings, "bind": way.bind}))
        stack.start_daemon()
        yield stack


@pytest.fixture(autouse=True)
def released(own: Stack) -> Iterator[None]:
    """After the test: what it reserved is given back."""
    yield
    wait_until(lambda: not Client(own.socket).tenants())


@pytest.fixture(scope="module")
def containerd(own: Stack) -> Stack:
    own.start_containerd()
    return own


@pytest.fixture(scope="module")
def client(containerd: Stack) -> DockerClient:
    docker = containerd.start_docker("--default-runtime=gpushare")
    docker.prepare(containerd.installation.probe)
    return DockerClient(containerd)


@pytest.fixture
def ctr(containerd: Stack, shell: None) -> Iterator[Ctr]:  # noqa: ARG001 - is there
    made = Ctr(containerd)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def shell(containerd: Stack) -> None:
    import_shell(containerd)


@pytest.fixture(scope="module")
def node(own: Stack) -> Iterator[CriNode]:
    with CriNode(own) as made:
        yield made


@pytest.fixture(scope="module")
def podman(own: Stack) -> Podman:
    return Podman(own)


def assert_bound(own: Stack, way: Way) -> None:
    """The one container is bound, and its spec has a hook that does it, or has none."""
    [row] = Client(own.socket).tenants()
    assert row["state"] == "bound"
    _, record = (own.root / "run/ledger" / row["key"]).read_text().splitlines()
    bundle = json.loads(record)["record"]["bundle"]
    words = own.argv("cat", f"{bundle}/config.json")
    spec = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    stages = {
        stage
        for stage, hooks in spec.get("hooks", {}).items()
        if any("--key" in hook.get("args", ()) for hook in hooks)
    }
    assert stages == ({"createRuntime"} if way.bind == "hook" else set())


def test_docker_runs_restarts_and_removes(own: Stack, client: DockerClient, way: Way) -> None:
    with client.run("once", *FOUR_GIB) as tenant:
        holds(tenant)
    with client.background("kept", "--restart", "always", *FOUR_GIB) as name:
        assert_bound(own, way)
        before = client.state(name)
        os.kill(before["Pid"], signal.SIGKILL)
        wait_until(lambda: client.state(name)["RestartCount"] > before["RestartCount"])
        wait_until(lambda: client.state(name)["Status"] == "running")
        with client.exec(name) as tenant:
            holds(tenant)
        client("restart", name)
        with client.exec(name) as tenant:
            holds(tenant)


def test_docker_reports_how_a_container_ended(client: DockerClient) -> None:
    """Its shim adopts the init that the launcher leaves to it."""
    with client.background("killed", *FOUR_GIB) as name:
        client("kill", name)
        wait_until(lambda: client.state(name)["Status"] == "exited")
        assert client.state(name)["ExitCode"] == 128 + signal.SIGKILL


def test_docker_passes_on_the_exit_status(client: DockerClient) -> None:
    asks = (*PLAIN, *SHELL, *FOUR_GIB)
    assert client.call("run", "--rm", *asks, *IN_SHELL, "exit 23").returncode == 23
    name = "failing"
    try:
        client(
            "run", "--detach", "--name", name, "--restart=on-failure:1", *asks, *IN_SHELL, "false"
        )
        wait_until(lambda: client.state(name)["RestartCount"] == 1)
        wait_until(lambda: client.state(name)["Status"] == "exited")
        assert client.state(name)["ExitCode"] == 1
    finally:
        client("rm", "--force", name)


def test_docker_gives_a_terminal_and_an_init(client: DockerClient) -> None:
    with client.background("terminal", "--tty", "--init", *SHELL, *FOUR_GIB) as name:
        look = ("exec", "--tty", name, "/usr/bin/busybox", "sh", "-c")
        assert client(*look, "readlink /proc/1/fd/0") == "/dev/pts/0"
        assert client(*look, "tty").startswith("/dev/pts/")
        client("kill", "--signal", "TERM", name)  # its init passes it on
        wait_until(lambda: client.state(name)["Status"] == "exited")
        assert client.state(name)["ExitCode"] == 128 + signal.SIGTERM


def test_docker_pauses_and_stops(client: DockerClient) -> None:
    with client.background("paused", *FOUR_GIB) as name:
        client("pause", name)
        assert client.state(name)["Status"] == "paused"
        client("unpause", name)
        with client.exec(name) as tenant:
            holds(tenant)
        client("stop", name)
        assert client.state(name)["ExitCode"] == 128 + signal.SIGKILL
        wait_until(lambda: client.quotas() == {})
        client("start", name)
        with client.exec(name) as tenant:
            holds(tenant)


def test_docker_refuses_a_container_without_available_memory(client: DockerClient) -> None:
    asks = ("--network", "none", "-e", "GPUSHARE_MEMORY=2000GiB")
    done = client.call("run", "--rm", *asks, "gpushare-probe")
    assert "gpushare: no card has room for 2000 GiB" in done.stderr


def test_podman_runs_and_removes(own: Stack, podman: Podman, way: Way) -> None:
    asks = "--annotation=gpushare.io/memory=4GiB"
    done = podman.run("--rm", asks, command=(PROGRAM, *probing(4 * GIB)))
    assert done.returncode == 0, done.stderr
    assert_slice(parse(done.stdout), 4 * GIB)
    try:
        podman.start("train", asks)
        assert_bound(own, way)
    finally:
        podman.remove("train")


def test_ctr_runs_executes_and_kills(ctr: Ctr, way: Way) -> None:
    pid_file = ctr.stage.root / f"{ctr.name}.pid"
    sleeps = (BUSYBOX, "sleep", "1000")
    done = ctr.run("--detach", "--pid-file", str(pid_file), *ANNOTATION, command=sleeps)
    assert done.returncode == 0, done.stderr
    assert_bound(ctr.stage, way)
    [row] = Client(ctr.stage.socket).tenants()
    assert ctr.processes() == [row["pid"]] == [int(pid_file.read_text())]
    holds_in_ctr(ctr.exec_probe())
    assert ctr.task("kill", "--signal", "SIGKILL", ctr.name).returncode == 0
    wait_until(lambda: not allocated(ctr.stage))


def test_ctr_passes_on_the_exit_status_and_the_terminal(ctr: Ctr) -> None:
    assert ctr.run("--rm", *ANNOTATION, command=(BUSYBOX, "sh", "-c", "exit 23")).returncode == 23
    # ctr may lose a short output (_told in test_containerd.py), never the exit status.
    said = next(filter(None, (on_a_terminal(ctr, BUSYBOX, "tty") for _ in range(5))))
    assert said.split() == [b"/dev/pts/0"]


def on_a_terminal(ctr: Ctr, *command: str) -> bytes:
    """Return what a container says on ctr's terminal."""
    master, slave = pty.openpty()
    argv = ctr.argv("--rm", "--tty", *ANNOTATION, command=command)
    try:
        with subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=ctr.stage.environment,
            start_new_session=True,
        ) as process:
            os.close(slave)
            assert process.wait() == 0
        return os.read(master, 4096)
    except OSError:  # EIO: nothing was said
        return b""
    finally:
        os.close(master)


@pytest.mark.parametrize("pid", ["CONTAINER", "POD", "NODE"])
def test_a_pod_has_the_processes_that_it_asks_for(
    own: Stack, node: CriNode, way: Way, pid: str
) -> None:
    """Its container's process is bound, executed in and ended, whoever else it shares pids with."""
    with node.pod({"memory": "4GiB"}, pid=pid) as pod:
        train = pod.run("train")
        assert_bound(own, way)
        assert_slice(train.probe(*probing(4 * GIB)).said, 4 * GIB)
        [row] = Client(own.socket).tenants()
        assert train.pid() == row["pid"]
        assert train.execute(BUSYBOX, "sh", "-c", "exit 23").status == 23
        os.kill(train.pid(), signal.SIGKILL)
        assert train.wait() == 128 + signal.SIGKILL
        wait_until(lambda: not allocated(own))
        side = pod.run("next", BUSYBOX, "sh", "-c", "exit 23")
        assert side.wait() == 23


def test_containers_outlive_a_restart_of_containerd(own: Stack, node: CriNode) -> None:
    with node.pod({"memory": "4GiB"}) as pod:
        train = pod.run("train")
        node.restart()
        assert train.state() == "CONTAINER_RUNNING"
        assert_slice(train.probe(*probing(4 * GIB)).said, 4 * GIB)
        assert list(allocated(own).values()) == [4 * GIB]
        os.kill(train.pid(), signal.SIGTERM)
        os.kill(train.pid(), signal.SIGKILL)
        assert train.wait() == 128 + signal.SIGKILL
