# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims: reserved before the kubelet is answered, shared by containers, and released."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.config import Config
from gpushare.daemon.lifecycle import bind, scheduled
from gpushare.daemon.lifecycle import scheduled as module
from gpushare.daemon.lifecycle.scheduled import ClaimChanged, UnknownClaim, UnknownPod
from gpushare.daemon.operator.reload import cordon_card
from gpushare.daemon.operator.resize import reset_quota, set_quota
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.store.record import TenantRecord
from gpushare.protocol.kubernetes import CLAIM_MOUNT
from gpushare.protocol.operations import MalformedRequest
from gpushare.quota.errors import QuotaError
from gpushare.quota.request_policy import MaxPerRequest

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import opened

CLAIM = "7d0c2b1e-0000-4000-8000-000000000001"


POD = "0a1b"


CARDS = [fakes.card(index).uuid for index in range(2)]


@contextmanager
def a_node(folder: Path) -> Iterator[FakeDaemon]:
    driver = FakeDriver(fakes.card(0), fakes.card(1))
    with fakes.node(folder, driver, Config(kubernetes_mode="dra")) as made:
        yield made


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with a_node(tmp_path) as made:
        yield made


def device(gib: int, cores: int = 0, card: int = 0, request: str = "gpu") -> dict[str, Any]:
    return {
        "request": request,
        "card": CARDS[card],
        "memory_bytes": gib * GIB,
        "cores": cores,
        "share": "",
    }


def prepare(
    node: FakeDaemon,
    *devices: dict[str, Any],
    claim: str = CLAIM,
    pods: tuple[str, ...] = (POD,),
    namespace: str = "team",
    **parameters: str,
) -> Any:
    return node.ask(
        "claim-prepare",
        claim=claim,
        namespace=namespace,
        name="gpu-claim",
        pods=list(pods),
        devices=list(devices),
        parameters={key.replace("_", "-"): text for key, text in parameters.items()},
    )


def container(
    node: FakeDaemon,
    folder: Path,
    name: str = "train",
    *,
    asked: Mapping[str, str] | None = None,
    pod: str = POD,
    claim: str = CLAIM,
) -> BundleToCreate:
    """Return a container of a pod with UID `pod`, as containerd writes it with the claim's CDI.

    It names all requests of a claim, or one: `UID.REQUEST`.
    """
    keys = {f"gpushare.io/{key}": text for key, text in (asked or {}).items()}
    engine = ContainerdBundles(folder / f"{pod}-{name}", keys, pod=f"s{pod}")
    made = engine.container(name)
    document = made.document()
    document["annotations"]["io.kubernetes.cri.sandbox-uid"] = pod
    known = node.ledger.claims.get(claim)
    requests = known.requests if known else ("gpu",)
    folder = node.node.config.run_dir.resolve() / "claims"
    document["mounts"] = [
        {"destination": f"{CLAIM_MOUNT}/{one}", "type": "bind", "source": str(folder / one)}
        for one in ([claim] if "." in claim else [f"{claim}.{name}" for name in requests])
    ]
    (made.folder / "config.json").write_text(json.dumps(document))
    return made


def record_of(made: Mapping[str, Any], node: FakeDaemon) -> TenantRecord:
    return node.ledger.entries[made["key"]]


def allocated(node: FakeDaemon) -> list[int]:
    return [capacity.allocated_bytes // GIB for capacity in node.accounts.capacities()]


def test_the_same_claim_again_is_the_same_answer_and_another_grant_is_refused(
    node: FakeDaemon,
) -> None:
    first = prepare(node, device(20), policy="best-effort")
    assert prepare(node, device(20), policy="best-effort", pods=(POD, "ff")) == first
    assert node.ask("claims")[0]["pods"] == [POD, "ff"]
    changes: list[tuple[int, dict[str, Any]]] = [
        (20, {"policy": "burst-share"}),
        (20, {}),
        (21, {"policy": "best-effort"}),
    ]
    for gib, parameters in changes:
        with pytest.raises(ClaimChanged, match="Unprepare it first"):
            prepare(node, device(gib), **parameters)
    assert allocated(node) == [20, 0]


def test_a_container_has_the_cards_of_the_requests_that_it_names(
    node: FakeDaemon, tmp_path: Path
) -> None:
    """One claim, three requests, of which two are on one card; the last container names none."""
    answer = prepare(
        node,
        device(20, 40, request="a"),
        device(10, 20, card=1, request="b"),
        device(8, 10, request="c"),
    )
    assert list(answer["cdi"]) == ["a", "b", "c"]
    found, asked = [], {"container.first.memory": "15GiB"}
    for name, request in (("b", "b"), ("c", "c"), ("first", "a"), ("second", "a")):
        made = container(node, tmp_path, name, asked=asked, claim=f"{CLAIM}.{request}").create(node)
        [part] = record_of(made, node).allocations
        found.append((CARDS.index(part.uuid), part.quota_bytes // GIB, part.cores))
    assert found == [(1, 10, 20), (0, 8, 10), (0, 15, 30), (0, 5, 10)]
    assert allocated(node) == [28, 10]
    with pytest.raises(NoRoom, match="0 B of 28 GiB left there"):
        container(node, tmp_path, "rest").create(node)


def test_containers_of_a_claim_never_have_more_than_it(node: FakeDaemon, tmp_path: Path) -> None:
    asked = {"container.train.memory": "12GiB", "container.eval.memory": "8GiB"}
    prepare(node, device(20), pods=(POD, "bb"))
    for name, pod in (("train", POD), ("eval", "bb")):
        container(node, tmp_path, name, asked=asked, pod=pod).create(node)
    assert allocated(node) == [20, 0]
    third = container(node, tmp_path, "third", asked={"memory": "1GiB"})
    with pytest.raises(
        NoRoom,
        match=r"claim team/gpu-claim has 0 B of 20 GiB left there\. To divide .* for example "
        r'gpushare\.io/container\.third\.memory: "10GiB"',
    ):
        third.create(node)
    assert allocated(node) == [20, 0]


def test_a_container_has_as_much_of_the_cores_as_of_the_memory(
    node: FakeDaemon, tmp_path: Path
) -> None:
    prepare(node, device(12, 40))
    asked = {"container.train.memory": "4GiB", "container.eval.memory": "8GiB"}
    for name in ("train", "eval"):
        container(node, tmp_path, name, asked=asked).create(node)
    assert [one.allocations[0].cores for one in node.ledger.entries.values()] == [13, 26]
    assert node.accounts.capacities()[0].cores_available == 60
    [train, _] = node.ledger.entries.values()
    set_quota(train, {"cores": "10"}, node)
    reset_quota(node.ledger.entries[train.key], node)
    assert node.ledger.entries[train.key].allocations[0].cores == 13


def test_the_cores_of_a_claim_are_shared_too(node: FakeDaemon, tmp_path: Path) -> None:
    prepare(node, device(20, 40))
    asked = {"memory": "8GiB", "cores": "30"}
    container(node, tmp_path, asked=asked).create(node)
    with pytest.raises(NoRoom, match=r"30 % of the compute of card 0.* has 10 of 40 % left"):
        container(node, tmp_path, "eval", asked=asked).create(node)
    assert node.accounts.capacities()[0].cores_available == 60


def test_a_pods_annotations_never_add_to_a_claim(node: FakeDaemon, tmp_path: Path) -> None:
    prepare(node, device(20))
    asked = {"memory": "40GiB", "cores": "30", "memory-limit": "60GiB", "count": "2"}
    [part] = record_of(container(node, tmp_path, asked=asked).create(node), node).allocations
    assert (part.quota_bytes, part.cores, part.burst_limit_bytes) == (20 * GIB, 0, 20 * GIB)


@pytest.mark.parametrize(
    ("namespace", "name"), [("team", "team/gpu-claim"), ("finance", CLAIM)], ids=["own", "another"]
)
def test_a_pod_for_which_the_claim_is_not_reserved_is_refused(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str, name: str
) -> None:
    """The refusal names no claim of another namespace."""
    monkeypatch.setattr(module, "_POD_SECONDS", 0.05)
    prepare(node, device(20), namespace=namespace)
    other = container(node, tmp_path, pod="ffff")
    before = other.text()
    with pytest.raises(UnknownPod, match=f"^claim {name} is not reserved for pod team/job"):
        other.create(node)
    assert other.text() == before
    assert node.ledger.entries == {}


def test_a_pod_that_joins_while_its_container_is_created_is_waited_for(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(node, device(20))
    monkeypatch.setattr(
        time, "sleep", lambda _: scheduled.set_pods(CLAIM, (POD, "ffff"), node.ledger)
    )
    assert container(node, tmp_path, pod="ffff").create(node)["mode"] == "shared"


def test_a_claim_that_is_not_prepared_is_refused(node: FakeDaemon, tmp_path: Path) -> None:
    with pytest.raises(NoRoom, match="is not prepared on this node"):
        container(node, tmp_path).create(node)
    with pytest.raises(UnknownClaim):
        node.ask("claim-pods", claim=CLAIM, pods=[POD])


def test_what_runs_when_its_claim_is_unprepared_keeps_its_part(
    node: FakeDaemon, tmp_path: Path, program: FakeProcess
) -> None:
    prepare(node, device(20))
    job = container(node, tmp_path, "job", asked={"memory": "5GiB"})
    key = job.create(node)["key"]
    bind.bind(key, job.identity, program.pid, os.getpid(), node)
    node.ask("claim-unprepare", claim=CLAIM)
    assert allocated(node) == [5, 0]
    assert key in node.ledger.entries
    program.kill()
    opened(node, memory="140GiB", devices="0")  # which looks for what has ended


def test_a_claim_takes_what_others_leave(node: FakeDaemon) -> None:
    opened(node, memory="100GiB", devices="0")
    with pytest.raises(NoRoom, match=r"card 0 has 40 of 140 GiB available;") as refused:
        prepare(node, device(50))
    assert "train" not in str(refused.value)  # the name of no container of others
    assert node.ledger.claims == {}
    prepare(node, device(40))
    with pytest.raises(NoRoom, match="claim team/gpu-claim 40"):
        opened(node, memory="1GiB", devices="0")


@pytest.mark.parametrize("cores", [0, 100])
def test_all_of_a_card_is_the_whole_card(node: FakeDaemon, tmp_path: Path, cores: int) -> None:
    prepare(node, device(139, cores))
    with pytest.raises(NoRoom, match="is allocated exclusively"):
        opened(node, memory="1GiB", devices="0")
    assert container(node, tmp_path).create(node)["mode"] == "exclusive"
    with pytest.raises(NoRoom, match="Use the claim in one container"):
        container(node, tmp_path, "eval").create(node)


SHARE: list[dict[str, Any]] = [device(20, 40)]


@pytest.mark.parametrize(
    ("devices", "parameters", "text"),
    [
        (SHARE, {"policy": "fair"}, "claim policy=fair: not a valid value. Write fixed-share, "),
        (SHARE, {"memory": "1GiB"}, "claim memory=1GiB: not a parameter of a claim. The param"),
        (SHARE, {"memory_limit": "1GiB"}, "claim memory-limit=1GiB: below memory 20GiB. Write"),
        (SHARE, {"priority": "0"}, "claim priority=0: above the highest allowed priority, 2"),
        ([device(20, 100)], {}, "but not all of its memory"),
        ([device(140, 100), device(20, card=1)], {}, "Request them in two claims"),
    ],
)
def test_parameters_are_checked_as_annotations_are(
    node: FakeDaemon, devices: list[dict[str, Any]], parameters: dict[str, Any], text: str
) -> None:
    terms = replace(node.node.config.terms, max_per_request=MaxPerRequest(priority=2))
    node.node.config = replace(node.node.config, terms=terms)
    with pytest.raises(QuotaError) as refused:
        prepare(node, *devices, **parameters)
    assert text in str(refused.value)
    assert node.ledger.claims == {}


def test_the_operator_resizes_within_the_claim(node: FakeDaemon, tmp_path: Path) -> None:
    prepare(node, device(20))
    opened(node, memory="120GiB", devices="0")  # the rest of the card
    record = record_of(container(node, tmp_path, asked={"memory": "5GiB"}).create(node), node)
    set_quota(record, {"memory": "20GiB"}, node)
    with pytest.raises(NoRoom, match="has 20 GiB of 20 GiB left"):
        set_quota(node.ledger.entries[record.key], {"memory": "21GiB"}, node)
    assert allocated(node) == [140, 0]


def test_a_cordoned_card_takes_no_container_of_a_claim(node: FakeDaemon, tmp_path: Path) -> None:
    prepare(node, device(20))
    cordon_card(fakes.card(0), "ECC errors", node.node, node.ledger)
    with pytest.raises(NoRoom, match=r"card 0 is cordoned \(ECC errors\)"):
        container(node, tmp_path).create(node)
    with pytest.raises(NoRoom, match="is cordoned"):
        prepare(node, device(20), claim="second")


def test_a_restarted_daemon_has_the_claims_and_sets_their_files_right(tmp_path: Path) -> None:
    with a_node(tmp_path) as before:
        prepare(before, device(20, 40), policy="burst-share", priority="2")
        rows = before.ask("claims")
        folder = before.node.config.run_dir / "claims" / f"{CLAIM}.gpu"
        folder.rmdir()
        stale = before.node.config.cdi_dir / "gpushare.io-claim-gone.json"
        stale.write_text("{}")
        (before.node.config.cdi_dir / f"gpushare.io-claim-{CLAIM}.json").unlink()
        (before.node.config.cdi_dir / "nvidia.yaml").write_text("others'")
    with a_node(tmp_path) as after:
        scheduled.adopt(after.node, after.ledger)
        assert after.ask("claims") == rows
        assert allocated(after) == [20, 0]
        assert folder.is_dir()
        names = sorted(file.name for file in after.node.config.cdi_dir.iterdir())
        assert names == [f"gpushare.io-claim-{CLAIM}.json", "nvidia.yaml"]
        train = container(after, tmp_path)
        record = record_of(train.create(after), after)
        assert (record.policy, record.priority, record.claim) == ("burst-share", 2, CLAIM)
        assert not any("claim" in mount["destination"] for mount in train.document()["mounts"])


@pytest.mark.parametrize(
    "change",
    [
        {"claim": "../../etc"},
        {"namespace": "Team"},
        {"pods": ["a/b"]},
        {"devices": []},
        {"devices": [device(1)] * 33},
        *({"devices": [{**device(1), **bad}]} for bad in ({"cores": 101}, {"memory_bytes": 0})),
        {"devices": [{**device(1), "memory_bytes": True}]},
        {"parameters": {"policy": 1}},
    ],
    ids=str,
)
def test_a_malformed_claim_is_refused(node: FakeDaemon, change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"claim": CLAIM, "namespace": "team", "name": "gpu", "pods": [POD]}
    fields |= {"devices": [device(1)], "parameters": {}}
    with pytest.raises(MalformedRequest):
        node.ask("claim-prepare", **{**fields, **change})
    assert node.ledger.claims == {}
