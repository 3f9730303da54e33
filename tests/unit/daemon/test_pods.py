# SPDX-License-Identifier: Apache-2.0
"""Containers of one pod: which of them may take what the pod asks for without a name."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.life import bind
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import NoRoom
from gpushare.oci.pods import annotations_of, believed
from gpushare.quota import QuotaError, pod_of

from . import fakes
from .bundles import Container, Engine
from .fakes import GIB

MEMORY = {"gpushare.io/memory": "4GiB"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with fakes.node(tmp_path) as made:
        yield made


@contextmanager
def running(made: dict[str, Any], container: Container, node: Node) -> Iterator[None]:
    """Run a process in the container: it is bound, and ends with this."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        bind.bind(made["key"], container.identity, process.pid, os.getpid(), node)
        try:
            yield
        finally:
            process.kill()


def promised(node: Node) -> int:
    return sum(room.promised_bytes for room in node.rooms())


def test_the_only_container_of_a_pod_gets_what_names_none(node: Node, tmp_path: Path) -> None:
    container = Engine(tmp_path, MEMORY).container("train")
    made = container.create(node)
    entry = node.ledger.entries[made["key"]]
    assert (made["given"], entry.quota) == ("shared", {"memory": "4GiB pod annotation"})
    assert (entry.namespace, entry.sandbox, entry.container) == ("team", "5a4d", "train")


def test_a_second_container_is_refused_and_the_names_to_write_are_said(
    node: Node, tmp_path: Path
) -> None:
    engine = Engine(tmp_path, MEMORY)
    train, proxy = engine.container("train"), engine.container("proxy")
    before = proxy.text()
    with running(train.create(node), train, node), pytest.raises(QuotaError) as refused:
        proxy.create(node)
    assert str(refused.value) == (
        'pod annotation gpushare.io/memory: "4GiB" names no container, and train of pod team/job-1 '
        "has it; write gpushare.io/container.train.memory, and gpushare.io/container.proxy.memory "
        "if this one needs a part of a GPU too"
    )
    assert proxy.text() == before
    assert promised(node) == 4 * GIB


def test_an_environment_that_shrinks_it_does_not_hide_that_it_names_none(
    node: Node, tmp_path: Path
) -> None:
    engine = Engine(tmp_path, MEMORY)
    train, proxy = engine.container("train"), engine.container("proxy", "GPUSHARE_MEMORY=1GiB")
    with running(train.create(node), train, node), pytest.raises(QuotaError, match="names no"):
        proxy.create(node)


def test_two_containers_that_are_named_get_their_own(node: Node, tmp_path: Path) -> None:
    asked = {
        "gpushare.io/container.train.memory": "4GiB",
        "gpushare.io/container.eval.memory": "2GiB",
    }
    engine = Engine(tmp_path, asked)
    for name in ("train", "eval"):
        assert engine.container(name).create(node)["given"] == "shared"
    assert promised(node) == 6 * GIB
    proxy = engine.container("proxy")
    assert proxy.create(node)["given"] == "none"
    why = next(entry.why for entry in node.ledger.entries.values() if entry.state == "none")
    assert 'are for "eval", "train", and this is "proxy"' in why


def test_an_init_container_gives_it_back_before_the_next_asks(node: Node, tmp_path: Path) -> None:
    # The card has room for one of them at a time.
    engine = Engine(tmp_path, {"gpushare.io/memory": "100GiB"})
    beside = Engine(tmp_path, {"gpushare.io/memory": "100GiB"}, pod="77aa")
    for attempt, name in enumerate(("fetch", "warm", "train")):
        container = engine.container(name)
        with running(container.create(node), container, node):
            assert promised(node) == 100 * GIB
            with pytest.raises(NoRoom):
                beside.container("other", attempt=attempt).create(node)


def test_a_container_that_is_started_again_is_the_same_one(node: Node, tmp_path: Path) -> None:
    engine = Engine(tmp_path, MEMORY)
    for attempt in range(3):
        container = engine.container("train", attempt=attempt)
        with running(container.create(node), container, node):
            assert promised(node) == 4 * GIB


def test_who_was_refused_does_not_take_the_place_of_who_had_it(node: Node, tmp_path: Path) -> None:
    engine = Engine(tmp_path, MEMORY)
    train = engine.container("train")
    with running(train.create(node), train, node), pytest.raises(QuotaError):
        engine.container("proxy").create(node)
    with pytest.raises(QuotaError, match="and train of pod team/job-1 has it"):
        engine.container("proxy", attempt=1).create(node)
    assert engine.container("train", attempt=1).create(node)["given"] == "shared"


def test_another_pod_is_another_matter(node: Node, tmp_path: Path) -> None:
    for pod, name in (("5a4d", "train"), ("77aa", "proxy")):
        engine = Engine(tmp_path, MEMORY, pod=pod)
        assert engine.container(name).create(node)["given"] == "shared"


def test_a_container_whose_runtime_failed_is_not_in_the_way(node: Node, tmp_path: Path) -> None:
    engine = Engine(tmp_path, MEMORY)
    with subprocess.Popen(["sleep", "1000"]) as runtime:
        engine.container("train").create(node, maker=runtime.pid)
        with pytest.raises(QuotaError, match="names no container"):
            engine.container("next").create(node)
        runtime.kill()
    assert engine.container("next", attempt=1).create(node)["given"] == "shared"
    assert promised(node) == 4 * GIB


def test_what_the_engine_gives_each_container_is_no_word_of_the_pod(
    node: Node, tmp_path: Path
) -> None:
    engine = Engine(tmp_path, {})
    for name in ("train", "eval"):
        made = engine.container(name, memory="4GiB").create(node)
        assert node.ledger.entries[made["key"]].quota == {"memory": "4GiB annotation"}


@pytest.mark.parametrize("hidden", ["gone", "damaged", "a link"])
def test_where_the_sandbox_cannot_be_seen_all_is_the_pod_s(
    node: Node, tmp_path: Path, hidden: str
) -> None:
    engine = Engine(tmp_path, {})
    sandbox = engine.tasks / "5a4d"
    if hidden == "damaged":
        (sandbox / "config.json").write_text("{")
    else:
        sandbox.rename(engine.tasks / "moved")
    if hidden == "a link":
        sandbox.symlink_to(engine.tasks / "moved")
    made = engine.container("train", memory="4GiB").create(node)
    assert node.ledger.entries[made["key"]].quota == {"memory": "4GiB pod annotation"}


def test_a_sandbox_id_that_is_a_path_leads_nowhere(node: Node, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"annotations": {}}))
    engine = Engine(tmp_path, {})
    engine.pod = "../.."
    made = engine.container("train", memory="4GiB").create(node)
    assert node.ledger.entries[made["key"]].quota == {"memory": "4GiB pod annotation"}


def test_a_cri_o_sandbox_is_found_beside_its_container(tmp_path: Path) -> None:
    sandbox = tmp_path / "overlay-containers" / "5a4d" / "userdata"
    sandbox.mkdir(parents=True)
    (sandbox / "config.json").write_text(json.dumps({"annotations": MEMORY}))
    beside = tmp_path / "overlay-containers" / "c1" / "userdata"
    assert annotations_of({**MEMORY, **_of_sandbox("5a4d")}, str(beside)) == MEMORY
    assert annotations_of({**MEMORY, **_of_sandbox("77aa")}, str(beside)) is None


def _of_sandbox(identity: str) -> dict[str, str]:
    """Return what CRI-O says of a container of that sandbox."""
    return {
        "io.kubernetes.container.name": "train",
        "io.kubernetes.cri-o.SandboxID": identity,
    }


TASK = "/run/containerd/io.containerd.runtime.v2.task"


@pytest.mark.parametrize(
    ("bundle", "is_believed"),
    [
        (f"{TASK}/k8s.io/4f1c", True),
        ("/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/4f1c", True),
        ("/run/containers/storage/overlay-containers/4f1c/userdata", True),
        ("/var/run/containers/storage/overlay-containers/4f1c/userdata/", True),
        ("/tmp/bundle", True),  # root's own runc
        (f"{TASK}/moby/4f1c", False),
        (f"{TASK}/docker-of-ci/4f1c", False),
        (f"{TASK}/default/4f1c", False),
        ("/var/lib/containers/storage/overlay-containers/4f1c/userdata", False),
        ("/srv/run/containers/overlay-containers/4f1c/userdata", False),
    ],
)
def test_only_who_makes_pods_is_believed_of_them(bundle: str, is_believed: bool) -> None:
    annotations = {
        "io.kubernetes.cri.container-name": "train",
        "io.container.manager": "cri-o",
        **MEMORY,
    }
    said = believed(bundle, annotations)
    assert (pod_of(said) is not None) == is_believed
    assert said["gpushare.io/memory"] == "4GiB"


def test_a_user_of_docker_is_in_no_pod_whatever_the_annotations_say(
    node: Node, tmp_path: Path
) -> None:
    engine = Engine(tmp_path, MEMORY, Path("io.containerd.runtime.v2.task/moby"))
    entries = []
    for name in ("train", "eval"):
        # Nor does he have the environment's trust lowered by it.
        made = engine.container(name, "GPUSHARE_COUNT=1").create(node)
        entries.append(node.ledger.entries[made["key"]])
    assert [entry.namespace for entry in entries] == ["", ""]
    assert [entry.quota for entry in entries] == [{"memory": "4GiB annotation"}] * 2
    assert all("would enlarge" in entry.notes[0] for entry in entries)


def test_after_a_restart_the_ledger_knows_who_has_it(tmp_path: Path) -> None:
    engine = Engine(tmp_path, MEMORY)
    train, proxy = engine.container("train"), engine.container("proxy")
    with subprocess.Popen(["sleep", "1000"]) as process:
        with fakes.node(tmp_path) as before:
            made = train.create(before)
            bind.bind(made["key"], train.identity, process.pid, os.getpid(), before)
        with fakes.again(tmp_path) as after, pytest.raises(QuotaError, match="train of pod"):
            proxy.create(after)
        process.kill()
