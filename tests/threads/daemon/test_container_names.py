# SPDX-License-Identifier: Apache-2.0
"""What containers are called, by the spec and by an engine that may be slow, wrong or hostile."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.identity import container_names
from gpushare.daemon.identity.container_names import ContainerName
from gpushare.daemon.lifecycle import bind
from gpushare.daemon.store.record import TenantRecord
from tests.system.waiting import wait_until
from tests.unit.daemon import fakes
from tests.unit.daemon.test_container_names import ID


@contextmanager
def engine(path: Path, answer: bytes) -> Iterator[list[bytes]]:
    """Answer every request on `path` with `answer`; yield what was asked."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(65536))
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def http(document: object, status: str = "200 OK") -> bytes:
    body = json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_the_name_is_read_from_docker(tmp_path: Path) -> None:
    with engine(tmp_path / "docker.sock", http({"Name": "/train"})) as asked:
        found = container_names.ask_engines(
            ID, [tmp_path / "none.sock", tmp_path / "docker.sock"], 5
        )
    assert found == ContainerName("docker", "train")
    assert asked[0].startswith(f"GET /containers/{ID}/json HTTP/1.1\r\n".encode())


def test_labels_that_gpushare_yaml_names_are_recorded(tmp_path: Path) -> None:
    labels = {"team": "red", "secret": "x", "odd": "a\x1b", "long": "x" * 500}
    answer = http({"Name": "/train", "Config": {"Labels": labels}})
    with fakes.node(tmp_path) as node, engine(tmp_path / "e.sock", answer):
        names = ("team", "odd", "long", "none")
        sockets = (tmp_path / "e.sock",)
        told = replace(node, config=replace(node.config, docker_sockets=sockets, labels=names))
        record = TenantRecord(key="0" * 16, state="bound", id=ID, labels={"cost": "7"})
        node.ledger.add(record)
        bind.with_names([record], told)
        wait_until(lambda: node.ledger.entries[record.key].name == "train")
        assert node.ledger.entries[record.key].labels == {"cost": "7", "team": "red"}


def test_only_an_id_of_dockers_form_is_looked_up(tmp_path: Path) -> None:
    with engine(tmp_path / "docker.sock", http({"Name": "/train"})) as asked:
        assert container_names.ask_engines("../images/x", [tmp_path / "docker.sock"], 5) is None
    assert not asked


@pytest.mark.parametrize(
    "answer",
    [
        http({"message": "no such container"}, "404 Not Found"),
        http({"Name": 'x" onclick'}),
        http({"Names": []}),
        http({"Name": "/train", "Config": []}),
        http({"Name": "/train", "Config": {"Labels": 5}}),
        http(["train"]),
        b"HTTP/1.1 200 OK\r\n\r\nnot json",
        b"garbage\r\n",
        b"",
    ],
)
def test_an_answer_that_makes_no_sense_is_no_name(tmp_path: Path, answer: bytes) -> None:
    with engine(tmp_path / "docker.sock", answer):
        assert container_names.ask_engines(ID, [tmp_path / "docker.sock"], 5) is None


def test_a_container_that_got_no_gpu_is_called_by_its_name_too(tmp_path: Path) -> None:
    with fakes.node(tmp_path) as node, engine(tmp_path / "e.sock", http({"Name": "/web"})) as asked:
        told = replace(node, config=replace(node.config, docker_sockets=(tmp_path / "e.sock",)))
        none, starting = (
            TenantRecord(key="0" * 16, state=state, id=ID) for state in ("none", "reserved")
        )
        node.ledger.add(none)
        assert [entry.name for entry in bind.with_names([none, starting], told)] == [
            "web",
            "",
        ]
        assert len(asked) == 1
        wait_until(lambda: node.ledger.entries[none.key].name == "web")


def test_an_engine_that_says_nothing_costs_the_name_only(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "docker.sock"))
        listener.listen()
        assert container_names.ask_engines(ID, [tmp_path / "docker.sock"], 0.05) is None
