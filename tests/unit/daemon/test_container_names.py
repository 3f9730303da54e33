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
from types import SimpleNamespace

import pytest

from gpushare.daemon.identity import container_names
from gpushare.daemon.identity.container_names import ContainerName, name_from_spec
from gpushare.daemon.lifecycle import bind
from gpushare.daemon.store.record import TenantRecord

from . import fakes

ID = "ab" * 32
TASK = "/run/containerd/io.containerd.runtime.v2.task"


@pytest.mark.parametrize(
    ("identity", "bundle", "expected"),
    [
        (
            ID,
            f"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/{ID}",
            ("docker", ""),
        ),
        (ID, f"{TASK}/private/{ID}", ("containerd", "")),
        ("train", f"{TASK}/default/train", ("containerd", "default/train")),
        (ID, f"/var/lib/containers/storage/overlay-containers/{ID}/userdata", ("podman", "")),
        ("train", "/tmp/bundle", ("runc", "train")),
    ],
)
def test_the_bundles_path_identifies_the_engine(
    identity: str, bundle: str, expected: tuple[str, str]
) -> None:
    assert name_from_spec(identity, bundle, {}) == ContainerName(*expected)


@pytest.mark.parametrize("file", ["containers.json", "volatile-containers.json"])
def test_podmans_storage_has_its_names(tmp_path: Path, file: str) -> None:
    bundle = str(tmp_path / ID / "userdata")
    listed = [{"id": "cd" * 32, "names": ["serve"]}, {"id": ID, "names": ["train"]}]
    (tmp_path / file).write_text(json.dumps(listed))
    assert container_names.stored_name(ID, bundle) == ContainerName("podman", "train")
    assert container_names.stored_name("ef" * 32, bundle) is None


@pytest.mark.parametrize(
    "text", ["", "null", '{"id": 1}', "[3]", '[{"id": "%s"}]', '[{"id": "%s", "names": ["a b"]}]']
)
def test_a_malformed_list_of_names_names_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "containers.json").write_text(text.replace("%s", ID))
    assert container_names.stored_name(ID, str(tmp_path / ID / "userdata")) is None


def test_a_container_of_a_pod_is_named_by_kubernetes() -> None:
    annotations = {
        "io.kubernetes.cri.sandbox-namespace": "team",
        "io.kubernetes.cri.sandbox-name": "pod",
        "io.kubernetes.cri.container-name": "train",
    }
    name = name_from_spec(ID, f"{TASK}/k8s.io/{ID}", annotations)
    assert name == ContainerName("containerd", "team/pod/train")


def test_an_annotation_that_is_no_name_is_not_shown() -> None:
    annotations = {
        "io.kubernetes.cri.sandbox-namespace": "team\x1b[2J",
        "io.kubernetes.cri.sandbox-name": "pod",
        "io.kubernetes.cri.container-name": "train",
    }
    assert name_from_spec("x", f"{TASK}/k8s.io/x", annotations).name == "k8s.io/x"


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
        fakes.wait_until(lambda: node.ledger.entries[record.key].name == "train")
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
        fakes.wait_until(lambda: node.ledger.entries[none.key].name == "web")


def test_silent_engines_cost_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def silent(*_: object) -> None:
        now[0] += 0.5

    monkeypatch.setattr(bind, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(container_names, "ask_engines", silent)
    entry = TenantRecord(key="0" * 16, state="bound", id=ID)
    with fakes.node(tmp_path) as node:
        assert bind.with_names([entry] * 100, node) == [entry] * 100
    assert now[0] <= 2


def test_an_engine_that_says_nothing_costs_the_name_only(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "docker.sock"))
        listener.listen()
        assert container_names.ask_engines(ID, [tmp_path / "docker.sock"], 0.05) is None
