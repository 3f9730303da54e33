# SPDX-License-Identifier: Apache-2.0
"""What containers are called, by the spec and by an engine that may be slow, wrong or hostile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.lifecycle import tenant_names
from gpushare.daemon.lifecycle.host_process import HostCommand, open_tenant
from gpushare.daemon.lifecycle.tenant_names import ContainerName, find_tenant, name_from_spec
from gpushare.daemon.store.ledger import TenantNotFound
from gpushare.daemon.store.record import TenantRecord
from gpushare.quota.errors import QuotaError
from tests.system.waiting import wait_until

from . import fakes
from .fakes import FakeDaemon

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


VICTIM, ATTACKER = "a" * 16, "b" * 16


OWN_ID = "4f5e6d7c8b9a" + "0" * 52  # of the victim


OTHER_ID = "c" * 64


NAMES = [OWN_ID, OWN_ID[:12], OWN_ID[:4], VICTIM]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path) as made:
        made.ledger.add(record(VICTIM, OWN_ID, "train"))
        yield made


def record(key: str, identity: str, name: str) -> TenantRecord:
    return replace(fakes.entry(key), id=identity, name=name, engine="docker", state="bound")


def refused(node: FakeDaemon, name: str) -> TenantNotFound:
    with pytest.raises(TenantNotFound) as caught:
        find_tenant(name, node)
    return caught.value


@pytest.mark.parametrize("name", [*NAMES, "4", f"team/pod/{OWN_ID[:12]}"])
def test_a_name_that_is_anothers_id_is_ambiguous(node: FakeDaemon, name: str) -> None:
    """However such a name came to be: it may have been there before the id."""
    node.ledger.add(record(ATTACKER, OTHER_ID, name))
    error = refused(node, name.rpartition("/")[2])
    for part in (
        f"train (ID {OWN_ID[:12]}, key {VICTIM})",
        f"ID {OTHER_ID[:12]}, key {ATTACKER}",
    ):
        assert part in str(error)
    assert sorted(error.candidates) == [VICTIM, ATTACKER]
    if name != VICTIM:
        assert find_tenant(VICTIM, node).key == VICTIM
    assert find_tenant(ATTACKER, node).key == ATTACKER


def test_the_start_of_a_name_is_enough_where_it_is_one_containers(node: FakeDaemon) -> None:
    for start in ("t", "trai", "train"):
        assert find_tenant(start, node).key == VICTIM
    node.ledger.add(record(ATTACKER, OTHER_ID, "team/pod/serve-1"))
    for start in ("team/pod/se", "pod/serve", "serve-"):
        assert find_tenant(start, node).key == ATTACKER
    assert refused(node, "rain").candidates == ["train", "team/pod/serve-1"]
    node.ledger.add(record("c" * 16, "d" * 64, "train-2"))
    assert refused(node, "tra").candidates == ["train", "train-2"]
    assert str(refused(node, "tra")) == '"tra" is the start of the names of several containers'
    assert find_tenant("train", node).key == VICTIM  # a whole name is no start
    node.ledger.add(record("e" * 16, "f" * 64, "train"))
    assert sorted(refused(node, "train").candidates) == [VICTIM, "e" * 16]
    for name in NAMES:  # nor is an ID the start of another's name
        node.ledger.add(record(ATTACKER, OTHER_ID, f"{name}-2"))
        assert find_tenant(name, node).key == VICTIM


@pytest.mark.parametrize("name", NAMES)
def test_gpushare_run_refuses_a_name_that_is_anothers_id(node: FakeDaemon, name: str) -> None:
    command = HostCommand(name=name, uid=1000, rootless=True)
    with pytest.raises(QuotaError, match="the ID of train, or its beginning") as caught:
        open_tenant(command, {"memory": "1GiB"}, node, node.room)
    assert "Use another name" in str(caught.value)
    assert list(node.ledger.entries) == [VICTIM]


@pytest.mark.parametrize("name", NAMES)
def test_an_engines_name_that_is_anothers_id_is_not_taken(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked: list[str] = []

    def engine(identity: str, *_: object) -> ContainerName:
        asked.append(identity)
        return ContainerName("docker", name)

    monkeypatch.setattr(tenant_names, "ask_engines", engine)
    node.ledger.add(record(ATTACKER, OTHER_ID, ""))
    [shown] = tenant_names.with_names([node.ledger.entries[ATTACKER]], node)
    assert shown.name == OTHER_ID[:12]
    wait_until(lambda: node.ledger.entries[ATTACKER].name != "")
    assert node.ledger.entries[ATTACKER].name == OTHER_ID[:12]
    assert find_tenant(name, node).key == VICTIM
    assert asked == [OTHER_ID]  # and not again at each look
