# SPDX-License-Identifier: Apache-2.0
"""create: the edited bundle, its reservation, the containers of a pod, and what is refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare import config
from gpushare.config import Config
from gpushare.daemon.lifecycle import bind, release
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.mps.runner import CardFolders
from gpushare.daemon.node import MpsGrant
from gpushare.daemon.observed import CardUsage, UsageView
from gpushare.daemon.operator.resize import reset_quota, set_quota
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.pages.process_watch import TenantSocket
from gpushare.daemon.placement.model import NonTenantProcess
from gpushare.daemon.placement.request import NoRoom, NoSuchCard
from gpushare.daemon.policy import FIXED
from gpushare.daemon.service import control_server
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.errors import UserError
from gpushare.oci import edits, spec
from gpushare.oci.request import sandbox_annotations, trusted_annotations
from gpushare.protocol.kubernetes import ALLOCATION_MOUNT, NodeMode
from gpushare.protocol.operations import MalformedRequest
from gpushare.quota.annotations import pod_of
from gpushare.quota.errors import QuotaError

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import ME, opened
from .test_mps_placement import configured

GPU = "GPUSHARE_MEMORY=4GiB"


SANDBOX = {"io.kubernetes.cri.container-type": "sandbox"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path) as made:
        yield made


def test_a_self_declared_sandbox_does_not_keep_an_unmetered_card(
    node: FakeDaemon, tmp_path: Path
) -> None:
    plain = BundleToCreate(tmp_path / "plain", annotations=SANDBOX)
    before = plain.text()
    assert plain.create(node, "weak")["mode"] == "none"
    assert plain.text() == before
    card = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
    allowed = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rwm"}
    rules = {"devices": [{"allow": False, "access": "rwm"}, allowed]}
    brings: dict[str, Any] = {
        "annotations": SANDBOX,
        "linux": {"devices": [card], "resources": rules},
    }
    assert BundleToCreate(tmp_path / "whole", **brings).create(node)["mode"] == "exclusive"
    assert [entry.isolation for entry in node.ledger.entries.values()] == ["exclusive"]
    # The card is taken now: a second one is told so, and never started with what it brought.
    with pytest.raises(QuotaError, match="is allocated exclusively to"):
        BundleToCreate(tmp_path / "second", **brings).create(node)


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        (["GPUSHARE_DEVICES=0,{0}"], [0]),
        (["GPUSHARE_DEVICES={1},0,1,{0}", GPU], [0, 1]),
        (["GPUSHARE_DEVICES=0,{0}", "GPUSHARE_COUNT=2"], "2 cards are requested"),
        (["GPUSHARE_DEVICES=0,7"], "card 7 does not exist"),
    ],
)
def test_a_card_with_two_names_is_taken_once(
    variables: list[str], found: list[int] | str, tmp_path: Path
) -> None:
    with fakes.node(tmp_path, FakeDriver(fakes.card(0), fakes.card(1))) as node:
        uuids = [card.uuid for card in node.node.loaded().cards]
        container = BundleToCreate(tmp_path / "b", *(each.format(*uuids) for each in variables))
        if isinstance(found, str):
            with pytest.raises(NoSuchCard, match=found):
                container.create(node)
            return
        container.create(node)
        [record] = node.ledger.entries.values()
        assert [part.uuid for part in record.allocations] == [uuids[index] for index in found]


def test_a_second_create_before_the_first_was_bound_takes_its_place(
    node: FakeDaemon, tmp_path: Path
) -> None:
    container = BundleToCreate(tmp_path / "b", GPU)
    first = container.create(node)
    once = container.text()
    assert container.create(node) == first
    assert container.text() == once
    assert [room.allocated_bytes for room in node.accounts.capacities()] == [4 * GIB]
    assert node.mounts.made() == [first["key"]]
    bind.bind(first["key"], "4f1c", os.getpid(), os.getppid(), node)
    with pytest.raises(NoRoom, match="is still running"):
        container.create(node)
    with pytest.raises(bind.ReservationNotFound, match="is already bound to process"):
        bind.bind(first["key"], "4f1c", os.getppid(), os.getpid(), node)
    assert container.text() == once


def test_a_second_runtime_does_not_take_the_pages_from_the_first(
    node: FakeDaemon, tmp_path: Path
) -> None:
    container = BundleToCreate(tmp_path / "b", GPU)
    with FakeProcess() as first:
        given = container.create(node, maker=first.pid)
        pages = node.tenants.pages[given["key"]]
        with pytest.raises(NoRoom, match=f"is being created by process {first.pid}; wait"):
            container.create(node, maker=os.getpid())
        assert node.tenants.pages[given["key"]] is pages
        assert container.create(node, maker=first.pid) == given  # its own second try
        first.kill()
    # It failed, or was killed: a retry need not wait for the reservation to expire.
    assert container.create(node, maker=os.getpid()) == given
    assert [room.allocated_bytes for room in node.accounts.capacities()] == [4 * GIB]
    entry = node.ledger.entries[given["key"]]
    assert (entry.maker, entry.state) == (os.getpid(), "reserved")


@pytest.mark.parametrize(
    ("owner", "step"),
    [(TenantMounts, "make"), (TenantSocket, "listen"), (edits, "apply"), (spec, "store")],
)
def test_a_failure_after_the_reservation_releases_it(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, step: str
) -> None:
    container = BundleToCreate(tmp_path / "b", GPU)
    before = container.text()
    monkeypatch.setattr(owner, step, fakes.no_space)
    with pytest.raises(OSError, match="No space"):
        container.create(node)
    assert container.text() == before
    assert sorted(path.name for path in container.folder.iterdir()) == ["config.json", "rootfs"]
    assert not node.ledger.entries
    assert node.mounts.made() == []
    assert not node.tenants.pages


@pytest.fixture
def runtime() -> Iterator[FakeProcess]:
    """A process that is to make a container."""
    with FakeProcess() as started:
        yield started
        started.kill()


@pytest.mark.parametrize("before", [True, False])
def test_a_command_that_is_never_bound_holds_nothing(
    node: FakeDaemon, runtime: FakeProcess, before: bool
) -> None:
    """`gpushare run` reserves, and is killed before it has the answer, or after."""
    if before:
        runtime.kill()
    command = replace(ME, maker=runtime.pid)
    key = open_tenant(command, {"memory": "4GiB"}, node, node.room)["key"]
    node.decide.run(lambda: None)
    node.loop.settle()
    if not before:
        assert key in node.ledger.entries
        runtime.kill()
        assert key in node.watch._pidfds
        node.watch.ended(key)
    node.decide.run(lambda: None)
    assert not node.ledger.entries
    assert node.mounts.made() == []


def test_only_a_container_without_a_gpu_is_dumped_and_restored(
    node: FakeDaemon, tmp_path: Path
) -> None:
    image = BundleToCreate(tmp_path / "plain", "NVIDIA_VISIBLE_DEVICES=all", identity="plain")
    for is_restore in (False, True):
        assert image.create(node, is_restore=is_restore)["mode"] == "none"
    container = BundleToCreate(tmp_path / "gpu", GPU, identity="train")
    before = container.text(), dict(node.ledger.entries)
    with pytest.raises(UserError, match=r"^container train requests a GPU, and a checkpoint has"):
        container.create(node, is_restore=True)
    assert (container.text(), dict(node.ledger.entries)) == before
    container.create(node)
    for allowed in ("plain", "other"):
        node.ask("checkpoint", id=allowed)
    with pytest.raises(UserError, match=r"^container train uses a GPU, and a checkpoint has no"):
        node.ask("checkpoint", id="train")


MEMORY = {"gpushare.io/memory": "4GiB"}


class PodNode:
    """A node, and what the kubelet starts on it."""

    def __init__(self, folder: Path, node: FakeDaemon) -> None:
        self.folder, self.node = folder, node

    def pod(self, asked: dict[str, str]) -> ContainerdBundles:
        return ContainerdBundles(self.folder, asked)

    def create(self, container: BundleToCreate) -> TenantRecord:
        key = container.create(self.node)["key"]
        return self.node.ledger.entries[key]

    @contextmanager
    def running(self, container: BundleToCreate) -> Iterator[TenantRecord]:
        """Create the container and run a process in it: it is bound, and ends with this."""
        made = self.create(container)
        with FakeProcess() as process:
            bind.bind(made.key, container.identity, process.pid, os.getpid(), self.node)
            try:
                yield self.node.ledger.entries[made.key]
            finally:
                process.kill()

    @property
    def allocated(self) -> int:
        return sum(room.allocated_bytes for room in self.node.accounts.capacities())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[PodNode]:
    with fakes.node(tmp_path) as made:
        yield PodNode(tmp_path, made)


def test_a_second_container_is_refused_with_the_names_to_write(one: PodNode) -> None:
    pod = one.pod(MEMORY)
    train, proxy = pod.container("train"), pod.container("proxy")
    before = proxy.text()
    with one.running(train), pytest.raises(QuotaError) as refused:
        one.create(proxy)
    assert str(refused.value) == (
        "pod annotation gpushare.io/memory=4GiB: names no container, and train of pod team/job-1 "
        "has it. Use gpushare.io/container.train.memory, and gpushare.io/container.proxy.memory "
        "if this one needs a share of a GPU too."
    )
    assert proxy.text() == before
    assert one.allocated == 4 * GIB


def test_what_the_operator_set_outlives_a_restart_by_the_kubelet(one: PodNode) -> None:
    """The kubelet makes a container with another ID, in the same pod and under the same name."""
    pod = one.pod(MEMORY)
    with one.running(pod.container("train")) as record:
        set_quota(record, {"memory": "6GiB", "cores": "20"}, one.node)
    with one.running(pod.container("train", attempt=1)) as record:
        assert (record.id, record.allocations[0].quota_bytes) == ("train-1", 6 * GIB)
        assert record.allocations[0].cores == 20
        reset_quota(record, one.node)
        assert one.allocated == 4 * GIB
    with one.running(pod.container("train", attempt=2)):
        assert one.allocated == 4 * GIB, "a reset outlives it too"


@pytest.mark.parametrize("hidden", ["gone", "damaged", "a link", "a path"])
def test_where_the_sandbox_cannot_be_seen_all_is_the_pod_s(one: PodNode, hidden: str) -> None:
    pod = one.pod({})
    sandbox = pod.tasks / "5a4d"
    if hidden == "a path":
        pod.pod = "../.."
        (one.folder / "config.json").write_text(json.dumps({"annotations": {}}))
    elif hidden == "damaged":
        (sandbox / "config.json").write_text("{")
    else:
        sandbox.rename(pod.tasks / "moved")
    if hidden == "a link":
        sandbox.symlink_to(pod.tasks / "moved")
    quota = one.create(pod.container("train", memory="4GiB")).quota
    assert quota == {"memory": {"value": "4GiB", "source": "pod annotation"}}


def test_a_cri_o_sandbox_is_found_beside_its_container(tmp_path: Path) -> None:
    sandbox = tmp_path / "overlay-containers" / "5a4d" / "userdata"
    sandbox.mkdir(parents=True)
    (sandbox / "config.json").write_text(json.dumps({"annotations": MEMORY}))
    beside = tmp_path / "overlay-containers" / "c1" / "userdata"
    for identity, found in (("5a4d", MEMORY), ("77aa", None)):
        said = {"io.kubernetes.container.name": "train", "io.kubernetes.cri-o.SandboxID": identity}
        assert sandbox_annotations({**MEMORY, **said}, str(beside)) == found


TASK = "/run/containerd/io.containerd.runtime.v2.task"


@pytest.mark.parametrize(
    ("bundle", "is_believed"),
    [
        (f"{TASK}/k8s.io/4f1c", True),
        ("/run/containers/storage/overlay-containers/4f1c/userdata", True),
        ("/tmp/bundle", True),  # root's own runc
        (f"{TASK}/moby/4f1c", False),
        ("/var/lib/containers/storage/overlay-containers/4f1c/userdata", False),
        ("/srv/run/containers/overlay-containers/4f1c/userdata", False),
    ],
)
def test_only_a_pod_engine_s_annotations_are_trusted(bundle: str, is_believed: bool) -> None:
    annotations = {
        "io.kubernetes.cri.container-name": "train",
        "io.container.manager": "cri-o",
        **MEMORY,
    }
    said = trusted_annotations(bundle, annotations)
    assert (pod_of(said) is not None) == is_believed
    assert said["gpushare.io/memory"] == "4GiB"


FIRST_CARD = fakes.card(0).uuid


class PluginNode(PodNode):
    """A node with the device plugin."""

    def allocate(self, gib: int, card: str = FIRST_CARD) -> str:
        """Return the folder of an allocation."""
        return str(self.node.ask("allocation", card=card, memory_bytes=gib * GIB)["folder"])

    def container(
        self,
        *folders: str,
        at: str = ALLOCATION_MOUNT,
        env: str = "A=b",
        name: str = "train",
        **asked: str,
    ) -> BundleToCreate:
        """Return a pod's container in which the kubelet has mounted `folders`."""
        keys = {f"gpushare.io/{key}": text for key, text in asked.items()}
        made = ContainerdBundles(self.folder, keys).container(name, env)
        document = made.document()
        mount = {"destination": at, "type": "bind", "options": ["rbind", "ro"]}
        document["mounts"] = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            *({**mount, "source": one} for one in folders),
        ]
        (made.folder / "config.json").write_text(json.dumps(document))
        return made

    def schedulable(self, index: int = 0) -> tuple[int, int]:
        row = self.node.ask("cards")[index]
        return row["schedulable_bytes"] // GIB, row["schedulable_cores"]


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[PluginNode]:
    driver = FakeDriver(fakes.card(0), fakes.card(1))
    with fakes.node(tmp_path, driver, Config(kubernetes_mode="plugin")) as made:
        yield PluginNode(tmp_path, made)


def test_a_folder_is_made_for_root_and_for_a_card_that_is_there(plugin: PluginNode) -> None:
    with pytest.raises(control_server.Forbidden):
        plugin.node.ask("allocation", uid=1000, card=FIRST_CARD, memory_bytes=GIB)
    with pytest.raises(NoSuchCard):
        plugin.allocate(4, card="../../etc")
    with pytest.raises(MalformedRequest):
        plugin.allocate(0)
    with pytest.raises(QuotaError, match=r"more than the 140GiB of card 0\. Allocate less"):
        plugin.allocate(141)
    plugin.node.node.config = replace(plugin.node.node.config, kubernetes_mode="dra")
    with pytest.raises(QuotaError, match=r"kubernetes\.mode: dra\. Set kubernetes\.mode to plu"):
        plugin.allocate(4)


def test_a_container_gets_what_the_plugin_allocated_and_not_the_mount(plugin: PluginNode) -> None:
    second = fakes.card(1).uuid
    train = plugin.container(plugin.allocate(8, second))
    record = plugin.create(train)
    assert [(one.uuid, one.quota_bytes) for one in record.allocations] == [(second, 8 * GIB)]
    assert record.quota["memory"] == {"value": "8GiB", "source": "device plugin"}
    destinations = [mount["destination"] for mount in train.document()["mounts"]]
    assert ALLOCATION_MOUNT not in destinations
    assert "/proc" in destinations


@pytest.mark.parametrize(
    ("asked", "gib"),
    [
        ({"memory": "100GiB", "memory-limit": "120GiB"}, 8),
        ({"container.train.memory": "2GiB", "memory": "100GiB", "devices": "1", "count": "2"}, 2),
    ],
)
def test_annotations_of_the_pod_never_raise_memory(
    plugin: PluginNode, asked: dict[str, str], gib: int
) -> None:
    train = plugin.container(plugin.allocate(8), env="GPUSHARE_MEMORY=50GiB", **asked)
    [allocation] = plugin.create(train).allocations
    assert (allocation.quota_bytes, allocation.burst_limit_bytes) == (gib * GIB, gib * GIB)
    assert allocation.uuid == FIRST_CARD


def test_a_part_of_a_card_never_becomes_the_whole_card(plugin: PluginNode) -> None:
    record = plugin.create(plugin.container(plugin.allocate(8), cores="100"))
    assert (record.shared, "would exceed" in "".join(record.notes)) == (True, True)


@pytest.mark.parametrize("mode", ["plugin", "dra"])
@pytest.mark.parametrize("key", ["memory", "container.train.memory", "memory-percent", "count"])
def test_a_pod_with_annotations_alone_is_refused_with_the_fix(
    plugin: PluginNode, mode: NodeMode, key: str
) -> None:
    value = {"memory-percent": "10", "count": "1"}.get(key, "4GiB")
    plugin.node.node.config = replace(plugin.node.node.config, kubernetes_mode=mode)
    train = plugin.container(**{key: value})
    before = train.text()
    with pytest.raises(QuotaError) as refused:
        plugin.create(train)
    assert f"annotation gpushare.io/{key}={value}: cannot be used" in str(refused.value)
    assert f"(kubernetes.mode: {mode})" in str(refused.value)
    assert "select nodes with the label gpushare.io/mode=annotations." in str(refused.value)
    assert train.text() == before


@pytest.mark.parametrize(
    ("forged", "at"),
    [
        ("/tmp/allocations/GPU-0000/1073741824", ALLOCATION_MOUNT),
        ("{run}/allocations/GPU-0000/1073741824/x", ALLOCATION_MOUNT),
        ("{run}/allocations/GPU-0000/-1", ALLOCATION_MOUNT),
        ("{run}/allocations/../GPU-0000/1", ALLOCATION_MOUNT),
        ("{run}/tenants/GPU-0000/1073741824", ALLOCATION_MOUNT),
        ("{run}/allocations/GPU-0000/1073741824", "/data"),
    ],
)
def test_a_mount_that_is_nearly_an_allocation_is_none(
    plugin: PluginNode, forged: str, at: str
) -> None:
    source = forged.format(run=plugin.node.node.config.run_dir.resolve())
    train = plugin.container(source, at=at)
    assert plugin.create(train).state == "none"
    assert train.document()["mounts"][-1]["source"] == source


def test_two_parts_of_one_card_are_refused(plugin: PluginNode) -> None:
    train = plugin.container(plugin.allocate(4), plugin.allocate(4))
    with pytest.raises(QuotaError, match="allocated 2 different parts of cards"):
        plugin.create(train)


def test_the_scheduler_has_the_card_less_what_others_hold(plugin: PluginNode) -> None:
    assert plugin.schedulable() == (140, 100)
    record = plugin.create(plugin.container(plugin.allocate(8), name="pod"))
    assert plugin.schedulable() == (140, 100)  # the scheduler knows of its own
    record = set_quota(record, {"memory": "20GiB"}, plugin.node)
    assert plugin.schedulable() == (128, 100)
    set_quota(record, {"memory": "4GiB"}, plugin.node)
    assert plugin.schedulable() == (140, 100)  # the kubelet still counts 8
    opened(plugin.node, memory="10GiB", cores="30", devices="0")
    assert plugin.schedulable() == (130, 70)
    opened(plugin.node, count="1", devices="1")
    assert plugin.schedulable(1) == (0, 0)


@pytest.mark.parametrize(
    ("weighs", "policy", "weight", "left"),
    [(False, "fixed-share", 0, 40), (True, "native-burst-share", 60, 100)],
)
def test_translated_cores_are_a_weight_where_the_node_says_so(
    plugin: PluginNode, *, weighs: bool, policy: str, weight: int, left: int
) -> None:
    terms = plugin.node.node.config.terms
    terms = replace(terms, dialects=replace(terms.dialects, weighs=weighs))
    plugin.node.node.config = replace(plugin.node.node.config, terms=terms)
    recorded = "position 0\nlimit nvidia.com/gpumem=8192\nlimit nvidia.com/gpucores=60"
    keys = {"container.train.vendor": recorded}
    record = plugin.create(plugin.container(plugin.allocate(8), **keys))
    assert (record.policy, record.weight) == (policy, weight)
    assert plugin.node.ask("cards")[0]["cores_available"] == left


#: Of another namespace, of this machine and of another user: none of it is a pod's to know.
SECRETS = ("payroll", "salary", "secret", "Xorg", "4711", "host-99", "alice")


@pytest.fixture
def full_node(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A node whose cards have 23 and 3 GiB available."""
    cards = fakes.card(0), fakes.card(1)
    with fakes.node(tmp_path, FakeDriver(*cards)) as made:
        for card, gib in zip(cards, (80, 100), strict=True):
            for name, quota in (("payroll/salary-0/secret", gib), ("alice", 17)):
                key = f"{len(made.ledger.entries):016x}"
                part = CardAllocation(card.uuid, quota * GIB, 45)
                record = replace(fakes.entry(key), id=f"host-99{key}", name=name, policy=FIXED)
                made.ledger.add(replace(record, allocations=(part,), namespace="payroll"))
        theirs = (NonTenantProcess(4711, "Xorg", 20 * GIB),)
        usage = CardUsage(non_tenants=theirs, non_tenant_bytes=20 * GIB)
        made.observed.usage = UsageView(cards=dict.fromkeys((card.uuid for card in cards), usage))
        yield made


REQUESTS: dict[str, Mapping[str, str]] = {
    "memory": {"gpushare.io/memory": "100GiB"},
    "percent": {"gpushare.io/memory-percent": "90"},
    "cores": {"gpushare.io/memory": "1GiB", "gpushare.io/cores": "50"},
    "two cards": {"gpushare.io/memory": "20GiB", "gpushare.io/count": "2"},
    "whole": {"gpushare.io/count": "1"},
    "named": {"gpushare.io/memory": "100GiB", "gpushare.io/devices": "1"},
}


def refusal(container: BundleToCreate, full_node: FakeDaemon) -> str:
    with pytest.raises((UserError, QuotaError)) as caught:
        container.create(full_node)
    return str(caught.value)


@pytest.mark.parametrize("what", REQUESTS)
def test_a_pods_refusal_names_no_other_pod(
    full_node: FakeDaemon, tmp_path: Path, what: str
) -> None:
    container = ContainerdBundles(tmp_path, REQUESTS[what]).container("train")
    text = refusal(container, full_node)
    # No quota of others either: 80, 100 and 17 GiB.
    assert not any(secret in text for secret in SECRETS), text
    assert not re.search(r"\b(80|17)\b", text), text
    assert "available" in text or what in {"cores", "whole"}, text


def test_on_a_plain_docker_host_the_refusal_names_the_other_containers(
    full_node: FakeDaemon, tmp_path: Path
) -> None:
    bundle = tmp_path / "io.containerd.runtime.v2.task/moby/4f1c"
    text = refusal(BundleToCreate(bundle, "GPUSHARE_MEMORY=100GiB"), full_node)
    assert "payroll/salary-0/secret 80" in text
    assert "by pid 4711 Xorg" in text


MAXIMA = {
    "max_per_node": """\
namespaces:
  team:
    max_per_node:
      memory: 20GiB
      cores: 120
""",
    "max_per_card": """\
namespaces:
  team:
    max_per_card: {memory: 10GiB, cores: 50}
""",
}


@pytest.mark.parametrize(
    ("of", "asked", "told"),
    [
        (
            "max_per_node",
            [{"memory": "8GiB"}, {"memory": "8GiB"}, {"memory": "5GiB"}],
            "it would give namespace team 21 GiB in all, above 20 GiB (namespaces.team.max_per",
        ),
        (
            "max_per_node",
            [{"memory": "1GiB", "cores": "60"}] * 2 + [{"memory": "1GiB", "cores": "1"}],
            "would give namespace team 121 % of the compute in all, above 120 % of the compute (",
        ),
        (
            "max_per_card",
            [
                {"memory": "2GiB", "memory-limit": "8GiB", "devices": "0"},
                {"memory": "3GiB", "devices": "0"},
            ],
            "would give namespace team 11 GiB in all, above 10 GiB (namespaces.team",
        ),
        (
            "max_per_card",
            [{"memory": "1GiB", "cores": "30", "devices": "0"}] * 2,
            "would give namespace team 60 % of the comp",
        ),
    ],
)
def test_what_a_namespace_has_together_is_bounded(
    tmp_path: Path, of: str, asked: list[dict[str, str]], told: str
) -> None:
    options = config.parse(MAXIMA[of], Path("gpushare.yaml"))
    cards = fakes.card(0), fakes.card(1), fakes.card(2, model="A100-PCIE-40GB")
    with fakes.node(tmp_path, FakeDriver(*cards), options) as made:

        def create(pod: str, namespace: str = "team", **quota: str) -> None:
            keys = {f"gpushare.io/{key}": text for key, text in quota.items()}
            engine = ContainerdBundles(tmp_path, keys, pod=pod, namespace=namespace)
            assert engine.container(f"train-{pod}").create(made)["mode"] == "shared"

        *fitting, last = asked
        for number, one in enumerate(fitting):
            create(str(number), **one)
        with pytest.raises(NoRoom, match=re.escape(told)):
            create("last", **last)
        keys = list(made.ledger.entries)
        create("x", "other", memory="30GiB")
        for key in keys:
            release.release_tenant(key, made, "it ended")
        create("y", memory="10GiB")


#: A page that no privileged process follows a name in, and /dev/shm of a card in MPS mode, which
#: the containers share.
WRITABLE = {
    "/.gpushare/tenant/status": "/run/tenants/KEY/pages/status",
    "/dev/shm": "/mps/CARD/shm",
}


@pytest.mark.parametrize(
    ("env", "writable"),
    [
        ([GPU], ["/.gpushare/tenant/status"]),
        (["GPUSHARE_COUNT=1"], []),
        ([GPU, "GPUSHARE_BACKEND=mps"], ["/.gpushare/tenant/status", "/dev/shm"]),
    ],
)
def test_no_mount_of_the_host_is_writable_but_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: list[str], writable: list[str]
) -> None:
    is_mps = len(env) > 1
    folders = CardFolders(tmp_path / "mps/CARD")
    grant = MpsGrant(str(folders.clients), str(folders.shared_memory), 0, 100, {})
    options = configured('cards: {"0": {backend: mps}}' if is_mps else "", tmp_path)
    with fakes.node(tmp_path, FakeDriver(fakes.card(0)), options) as node:
        monkeypatch.setattr(node.servers, "admit", lambda *_: grant)
        container = BundleToCreate(tmp_path / "b", *env)
        key = container.create(node)["key"]
    mounts = container.document()["mounts"]
    assert len(mounts) >= 3
    found = {
        mount["destination"]: mount["source"].removeprefix(str(tmp_path)).replace(key, "KEY")
        for mount in mounts
        if "ro" not in mount["options"] and mount["type"] != "tmpfs"
    }
    assert found == {where: WRITABLE[where] for where in writable}
