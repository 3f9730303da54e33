# SPDX-License-Identifier: Apache-2.0
"""Docker, as people start containers with it: the quota is seen, held, and given back."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from gpushare.verify import Docker
from tests.stack import Stack
from tests.system.waiting import wait_until

from .docker_client import FOUR_GIB, GIB, IMAGE, PLAIN, DockerClient, holds

WITH_RUNTIME = ("--runtime=gpushare", *FOUR_GIB)


@pytest.fixture
def client(stage: Stack, docker: Docker) -> DockerClient:
    assert docker.env == stage.env
    return DockerClient(stage)


def test_named_by_the_user(client: DockerClient) -> None:
    with client.run("named", *WITH_RUNTIME) as tenant:
        holds(tenant)
        wait_until(lambda: client.quotas() == {"named": 4 * GIB})


def test_as_the_default_runtime(client: DockerClient) -> None:
    assert client("info", "--format", "{{.DefaultRuntime}}") == "gpushare"
    with client.run("default", *FOUR_GIB) as tenant:
        holds(tenant)


@pytest.mark.parametrize(
    "flags",
    [
        ("--read-only",),
        ("--user", "1000:1000"),
        ("--user", "1000:1000", "--read-only", "--security-opt", "no-new-privileges"),
        ("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        ("--init",),
        ("--memory", "64m", "--cpus", "0.5", "--pids-limit", "64"),
        ("--pid", "host", "--ipc", "host", "--uts", "host"),
        ("--tmpfs", "/opt", "--tmpfs", "/usr/lib"),
        ("--workdir", "/tmp", "--hostname", "tenant"),
    ],
    ids=" ".join,
)
def test_with_flags_of_all_kinds(client: DockerClient, flags: tuple[str, ...]) -> None:
    with client.run("flags", *FOUR_GIB, *flags) as tenant:
        holds(tenant)


def test_in_a_cgroup_that_the_user_chose(client: DockerClient) -> None:
    assert client("info", "--format", "{{.CgroupDriver}}") == "cgroupfs"
    parent = f"/{client.stage.cgroup}/chosen"
    with client.background("chosen", *FOUR_GIB, "--cgroup-parent", parent) as name:
        pid = client.state(name)["Pid"]
        assert f":{parent}/" in Path(f"/proc/{pid}/cgroup").read_text()
        with client.exec(name) as tenant:
            holds(tenant)


def test_by_an_annotation(client: DockerClient) -> None:
    if not supports_annotations(client):
        done = client.call("run", "--rm", "--annotation", "gpushare.io/memory=4GiB", IMAGE)
        assert done.returncode != 0
        assert "annotation" in done.stderr
        return
    with client.run("annotated", "--annotation", "gpushare.io/memory=4GiB") as tenant:
        holds(tenant)


def supports_annotations(client: DockerClient) -> bool:
    """`--annotation` came with version 1.43 of the API, Docker 24."""
    version = client("version", "--format", "{{.Server.APIVersion}}")
    return tuple(map(int, version.split("."))) >= (1, 43)


def test_a_container_that_asks_for_no_gpu_starts_without_one(client: DockerClient) -> None:
    with client.run("plain") as tenant:
        assert tenant.wait() == 3, tenant.errors  # the probe ran and found no driver
    assert client.quotas() == {}


def test_a_process_executed_later_shares_the_quota(client: DockerClient) -> None:
    with client.background("shared", *FOUR_GIB) as name, client.exec(name) as first:
        assert first.start()["code"] == 0
        assert first.ask(f"alloc {2 * GIB}")["code"] == 0
        with client.exec(name, "--user", "1000", "--env", "GPUSHARE_MEMORY=8GiB") as second:
            assert second.start()["code"] == 0
            assert second.ask("info")["total"] == 4 * GIB
            assert second.ask(f"alloc {2 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"


def test_stopped_started_and_restarted_it_has_the_same_quota(client: DockerClient) -> None:
    with client.background("again", *FOUR_GIB) as name:
        for verb in ("start", "restart"):
            if verb == "start":
                client("stop", name)
                wait_until(lambda: client.quotas() == {})
            before = client.state(name)["Pid"]
            client(verb, name)
            assert client.state(name)["Pid"] not in (0, before)
            with client.exec(name) as tenant:
                holds(tenant)
            wait_until(lambda: client.quotas() == {"again": 4 * GIB})


def test_created_first_and_attached_to_later(client: DockerClient) -> None:
    with client.nothing_kept():
        client("create", "--name", "later", *PLAIN, *FOUR_GIB, IMAGE, "gpushare-probe", "info")
        try:
            assert client.quotas() == {}
            _, info = map(json.loads, client("start", "--attach", "later").splitlines())
            assert info["total"] == 4 * GIB
        finally:
            client("rm", "--force", "later")


def test_killed_behind_dockers_back_it_gives_its_quota_back(client: DockerClient) -> None:
    with client.background("killed", *FOUR_GIB) as name:
        os.kill(client.state(name)["Pid"], signal.SIGKILL)
        wait_until(lambda: client.quotas() == {})


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("GPUSHARE_MEMORY=4Q", "GPUSHARE_MEMORY=4Q: not a size. Write e.g. 4GiB."),
        ("GPUSHARE_MEMORY=2000GiB", "no card has room for 2000 GiB: card 0 has"),
        ("GPUSHARE_MEMROY=4GiB", "Did you mean GPUSHARE_MEMORY?"),
    ],
)
def test_a_refusal_is_one_clear_line(client: DockerClient, variable: str, says: str) -> None:
    with client.nothing_kept():
        done = client.call("run", "--rm", *PLAIN, "-e", variable, IMAGE)
    assert done.returncode in (125, 126, 127)
    lines = [line for line in done.stderr.splitlines() if "gpushare: " in line]
    assert len(lines) == 1
    assert lines[0].count("gpushare: ") == 1
    assert says in lines[0].replace('\\"', '"')
    assert client("ps", "--all", "--quiet") == ""


LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def test_docker_has_its_answer_while_gpushared_hangs(client: DockerClient, stage: Stack) -> None:
    """The launcher gives up after a second, and leaves nothing that keeps containerd waiting."""
    assert stage.daemon is not None
    pid = stage.daemon.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        done = client.call("run", "--rm", *PLAIN, *WITH_RUNTIME, IMAGE)
        queued = descriptors_queued_for(pid)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.returncode in (125, 126, 127)
    assert "gpushared" in done.stderr
    # containerd would unmount the root for ten seconds if a descriptor of it were in the queue.
    assert set(queued) == {0}


def descriptors_queued_for(pid: int) -> list[int]:
    """Return how many descriptors wait to be received at each Unix socket of a process."""
    files = Path(f"/proc/{pid}/fdinfo").iterdir()
    lines = (line for file in files for line in file.read_text().splitlines())
    return [int(line.split()[1]) for line in lines if line.startswith("scm_fds:")]


@pytest.mark.parametrize("options", ["", ":ro"], ids=["rw", "ro"])
def test_a_volume_over_the_loaders_directory_stays_as_it_was(
    client: DockerClient, options: str
) -> None:
    source = client.stage.root / f"volume{options.replace(':', '-')}"
    source.mkdir()
    (source / "kept").touch()
    with client.run("volume", *FOUR_GIB, "-v", f"{source}:{LIBRARIES}{options}") as tenant:
        holds(tenant)
    assert [path.name for path in source.iterdir()] == ["kept"]


def test_volumes_of_another_container_and_of_a_name(client: DockerClient) -> None:
    try:
        client("create", "--name", "owner", "-v", f"libraries:{LIBRARIES}", IMAGE)
        with client.run("taker", *FOUR_GIB, "--volumes-from", "owner") as tenant:
            holds(tenant)
        folder = Path(client("volume", "inspect", "--format", "{{.Mountpoint}}", "libraries"))
        assert list(folder.iterdir()) == []
    finally:
        client.call("rm", "--force", "owner")
        client.call("volume", "rm", "libraries")


def test_a_volume_over_opt_is_refused_by_its_name(client: DockerClient) -> None:
    source = client.stage.root / "opt-volume"
    source.mkdir()
    with client.nothing_kept():
        done = client.call("run", "--rm", *PLAIN, *FOUR_GIB, "-v", f"{source}:/opt", IMAGE)
    assert done.returncode == 125
    assert "gpushare: the volume at /opt covers /opt/gpushare/driver/libcuda.so.1" in done.stderr
    assert list(source.iterdir()) == []


def test_a_committed_image_has_no_library_that_another_runtime_fails_on(
    client: DockerClient,
) -> None:
    try:
        with client.background("committed", *FOUR_GIB) as name:
            client("commit", name, "committed-image")
        probe = ("committed-image", "gpushare-probe", "info")
        done = client.call("run", "--rm", "--runtime=runc", *PLAIN, *probe)
        assert done.returncode == 3, done.stderr
        assert "file too short" not in done.stdout + done.stderr
        with client.nothing_kept():
            again = client("run", "--rm", *PLAIN, *FOUR_GIB, *probe)
        assert json.loads(again.splitlines()[-1])["total"] == 4 * GIB
    finally:
        client.call("rmi", "--force", "committed-image")
