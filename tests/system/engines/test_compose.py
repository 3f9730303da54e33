# SPDX-License-Identifier: Apache-2.0
"""Compose files with `runtime:` and `environment:`, by docker-compose and by `docker compose`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpushare.verify import Docker
from tests.stack import Stack
from tests.system.waiting import wait_until

from .docker_client import GIB, IMAGE, DockerClient, holds

#: As docs/how-to/share-a-card.md shows them.
SERVICE: dict[str, Any] = {
    "image": IMAGE,
    "runtime": "gpushare",
    "network_mode": "none",
    "stdin_open": True,
    "stop_signal": "KILL",
}
SERVICES = {
    "train": {**SERVICE, "environment": {"GPUSHARE_MEMORY": "4GiB", "GPUSHARE_CORES": "30"}},
    "serve": {**SERVICE, "environment": ["GPUSHARE_MEMORY=8GiB"], "read_only": True},
    "web": {**SERVICE, "entrypoint": ["gpushare-probe"]},
}


class Project:
    """A compose file and the command that brings it up."""

    def __init__(self, client: DockerClient, argv: list[str]) -> None:
        self.client = client
        self.file = client.stage.root / "compose.yaml"
        # Neither a folder of the machine's nor a container's name may matter to the other command.
        self.name = "_".join(word.replace("-", "") for word in argv)
        self.argv = [*argv, "--project-name", self.name, "--file", str(self.file)]

    def write(self, services: dict[str, Any]) -> None:
        named = {name: {**service, "container_name": name} for name, service in services.items()}
        # 1.29 knows a file without a version as one of its first form.
        self.file.write_text(yaml.safe_dump({"version": "2.4", "services": named}))

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.argv, *words],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=self.client.stage.environment,
            timeout=60,
        )

    def __call__(self, *words: str) -> None:
        done = self.call(*words)
        assert done.returncode == 0, f"{words}: {done.stderr}"


@pytest.fixture(params=["docker-compose", "docker compose"])
def project(request: pytest.FixtureRequest, stage: Stack, docker: Docker) -> Iterator[Project]:
    assert docker.env == stage.env
    client = DockerClient(stage)
    made = Project(client, request.param.split())
    if made.argv[0] == "docker" and "Usage:  docker compose" not in client("compose", "--help"):
        pytest.skip("this docker has no plugin: docker compose came with version 2 of compose")
    with client.nothing_kept():
        yield made
        made.call("down", "--timeout", "0")


def test_each_service_gets_the_request_of_its_environment(project: Project) -> None:
    project.write(SERVICES)
    project("up", "--detach")
    client = project.client
    wait_until(lambda: client.quotas() == {"train": 4 * GIB, "serve": 8 * GIB})
    with client.exec("train") as train, client.exec("serve") as serve:
        holds(train)
        holds(serve, 8 * GIB)
    assert client("wait", "web") == "3"  # its probe ran and found no driver
    project("restart", "--timeout", "0", "train")
    with client.exec("train") as train:
        holds(train)
    project("down", "--timeout", "0")
    wait_until(lambda: client.quotas() == {})


def test_a_refusal_reaches_the_user_of_compose(project: Project) -> None:
    project.write({"train": {**SERVICE, "environment": {"GPUSHARE_MEMORY": "4Q"}}})
    done = project.call("up", "--detach")
    assert done.returncode != 0
    said = (done.stdout + done.stderr).replace('\\"', '"')
    assert "GPUSHARE_MEMORY=4Q: not a size. Write e.g. 4GiB." in said
