# SPDX-License-Identifier: Apache-2.0
"""`gpushare history NAME` of a real gpushared finds each container by its name, and by no other."""

from __future__ import annotations

import contextlib
import json
import secrets
import socketserver
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until


class _Engine(socketserver.ThreadingUnixStreamServer):
    """Docker's API as far as gpushared asks it: the names of containers."""

    daemon_threads = True

    def __init__(self, path: Path, names: Mapping[str, str]) -> None:
        self.names = names
        super().__init__(str(path), _Answer)


class _Answer(BaseHTTPRequestHandler):
    server: _Engine

    def do_GET(self) -> None:
        name = self.server.names.get(self.path.split("/")[2])
        body = json.dumps({"Name": f"/{name}"}).encode() if name else b"{}"
        self.send_response(200 if name else 404)
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "gpushared"


@contextlib.contextmanager
def engine(path: Path, names: Mapping[str, str]) -> Iterator[None]:
    with _Engine(path, names) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield
        server.shutdown()
        serving.join()


@pytest.fixture
def own() -> Iterator[Stack]:
    with Stack() as made:
        said = yaml.safe_load(made.config.read_text())
        said["engines"] = {**said.get("engines", {}), "sockets": [str(made.root / "engine.sock")]}
        made.config.write_text(yaml.safe_dump(said))
        made.start_daemon()
        yield made


def of_docker(stack: Stack) -> Bundle:
    """Return a bundle with an ID and a path as docker's, of which only docker knows the name."""
    bundle = Bundle(stack, quota={"memory": "1GiB"})
    bundle.id = secrets.token_hex(32)
    path = stack.root / "io.containerd.runtime.v2.task" / "moby" / bundle.id
    path.parent.mkdir(parents=True, exist_ok=True)
    bundle.path = bundle.path.rename(path)
    bundle.rootfs = path / "rootfs"
    return bundle


def told(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*stack.cli, "history", *words],
        check=False,
        capture_output=True,
        text=True,
        env=stack.environment,
    )


def listed(stack: Stack, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(told(stack, name, "--json").stdout)
    return found


def test_a_running_container_is_found_by_the_name_it_has_now(own: Stack) -> None:
    bundle = of_docker(own)
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert told(own, "web").returncode == 1  # no engine has told yet
        with engine(own.root / "engine.sock", {bundle.id: "web"}):
            events = listed(own, "web")
            lines = told(own, "web").stdout.splitlines()
        assert [event["event"] for event in events] == ["tenant-reserved", "tenant-bound"]
        assert {(event["id"], event["name"]) for event in events} == {(bundle.id, "web")}
        assert all(f" web ({bundle.id[:12]}) " in line for line in lines)
        assert len(lines) == 2


def test_two_containers_with_one_name_one_after_the_other(own: Stack) -> None:
    made = [of_docker(own), of_docker(own)]
    names: dict[str, str] = {}
    client = Client(own.socket)
    with engine(own.root / "engine.sock", names):
        for bundle in made:
            names.clear()
            names[bundle.id] = "train"
            with bundle.run() as tenant:
                assert tenant.start()["code"] == 0
                assert client.tenant("train")["id"] == bundle.id
            wait_until(lambda: not client.tenants(everything=True))
    events = listed(own, "train")
    assert {event["id"] for event in events} == {bundle.id for bundle in made}
    for bundle in made:
        kept = [event for event in events if event["id"] == bundle.id]
        assert kept[0]["event"] == "tenant-reserved"
        assert kept[-1]["event"] == "tenant-released"
        assert listed(own, bundle.id[:12]) == kept
        assert told(own, "train").stdout.count(f"train ({bundle.id[:12]}) ") == len(kept)
