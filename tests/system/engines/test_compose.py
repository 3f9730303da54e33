# SPDX-License-Identifier: Apache-2.0
"""A compose file with `runtime:` and `environment:`, as docs/how-to/share-a-card.md shows it."""

from __future__ import annotations

import subprocess
from typing import Any

import yaml

from tests.system.waiting import wait_until

from .docker_client import GIB, IMAGE, DockerClient, holds

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


def test_each_service_gets_the_request_of_its_environment(docker: DockerClient) -> None:
    file = docker.stage.root / "compose.yaml"
    named = {name: {**service, "container_name": name} for name, service in SERVICES.items()}
    # 1.29 knows a file without a version as one of its first form.
    file.write_text(yaml.safe_dump({"version": "2.4", "services": named}))

    def compose(*words: str) -> None:
        argv = ["docker-compose", "--project-name", "shares", "--file", str(file), *words]
        env = docker.stage.environment
        done = subprocess.run(argv, check=False, capture_output=True, text=True, env=env)
        assert done.returncode == 0, f"{words}: {done.stderr}"

    try:
        compose("up", "--detach")
        wait_until(lambda: docker.quotas() == {"train": 4 * GIB, "serve": 8 * GIB})
        with docker.exec("train") as train, docker.exec("serve") as serve:
            holds(train)
            holds(serve, 8 * GIB)
        assert docker("wait", "web") == "3"  # its probe ran and found no driver
        compose("restart", "--timeout", "0", "train")
        with docker.exec("train") as train:
            holds(train)
    finally:
        compose("down", "--timeout", "0")
    wait_until(lambda: docker.quotas() == {})
