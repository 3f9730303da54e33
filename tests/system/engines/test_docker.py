# SPDX-License-Identifier: Apache-2.0
"""Docker, as people start containers with it: the quota is seen, held, and given back."""

from __future__ import annotations

import pytest

from tests.system.waiting import wait_until

from .docker_client import FOUR_GIB, GIB, IMAGE, PLAIN, DockerClient, holds


@pytest.mark.gate
def test_a_container_gets_its_request(docker: DockerClient) -> None:
    with docker.run("named", "--runtime=gpushare", *FOUR_GIB) as tenant:
        holds(tenant)
        wait_until(lambda: docker.quotas() == {"named": 4 * GIB})
    with docker.run("plain") as tenant:
        assert tenant.wait() == 3, tenant.errors  # the probe ran and found no driver


@pytest.mark.parametrize(
    "flags",
    [
        ("--user", "1000:1000", "--read-only", "--security-opt", "no-new-privileges"),
        ("--cap-drop", "ALL", "--init", "--memory", "64m", "--cpus", "0.5", "--pids-limit", "64"),
        ("--pid", "host", "--ipc", "host", "--uts", "host"),
        ("--volume", "/opt", "--tmpfs", "/run", "--tmpfs", "/usr/lib", "--workdir", "/tmp"),
    ],
    ids=" ".join,
)
def test_with_flags_of_all_kinds(docker: DockerClient, flags: tuple[str, ...]) -> None:
    with docker.run("flags", *FOUR_GIB, *flags) as tenant:
        holds(tenant)


@pytest.mark.gate
def test_a_process_executed_later_shares_the_quota(docker: DockerClient) -> None:
    with docker.background("shared", *FOUR_GIB) as name, docker.exec(name) as first:
        assert first.start()["code"] == 0
        assert first.ask(f"alloc {2 * GIB}")["code"] == 0
        with docker.exec(name, "--user", "1000", "--env", "GPUSHARE_MEMORY=8GiB") as second:
            assert second.start()["code"] == 0
            assert second.ask("info")["total"] == 4 * GIB
            assert second.ask(f"alloc {2 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.gate
def test_a_refusal_is_one_clear_line(docker: DockerClient) -> None:
    done = docker.call("run", "--rm", *PLAIN, "-e", "GPUSHARE_MEMORY=2000GiB", IMAGE)
    assert done.returncode in (125, 126, 127)
    lines = [line for line in done.stderr.splitlines() if "gpushare: " in line]
    assert len(lines) == 1
    assert lines[0].count("gpushare: ") == 1
    assert "no card has room for 2000 GiB: card 0 has" in lines[0]
    assert docker("ps", "--all", "--quiet") == ""
