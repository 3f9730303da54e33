# SPDX-License-Identifier: Apache-2.0
"""What containers are called, by the spec and by an engine that may be slow, wrong or hostile."""

from __future__ import annotations

import json
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
    ("identity", "bundle", "namespace", "expected"),
    [
        (ID, f"/run/docker{TASK}/moby/{ID}", "", ("docker", "")),
        (ID, f"{TASK}/private/{ID}", "", ("containerd", "")),
        ("train", f"{TASK}/default/train", "", ("containerd", "default/train")),
        (ID, f"/var/lib/containers/storage/overlay-containers/{ID}/userdata", "", ("podman", "")),
        ("train", "/tmp/bundle", "", ("runc", "train")),
        (ID, f"{TASK}/k8s.io/{ID}", "team", ("containerd", "team/pod/train")),
        ("x", f"{TASK}/k8s.io/x", "team\x1b[2J", ("containerd", "k8s.io/x")),  # it is no name
    ],
)
def test_a_container_is_called_by_its_pod_or_its_bundle(
    identity: str, bundle: str, namespace: str, expected: tuple[str, str]
) -> None:
    pod = {"sandbox-namespace": namespace, "sandbox-name": "pod", "container-name": "train"}
    annotations = {f"io.kubernetes.cri.{key}": text for key, text in pod.items() if namespace}
    assert name_from_spec(identity, bundle, annotations) == ContainerName(*expected)


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
