# SPDX-License-Identifier: Apache-2.0
"""The DRA driver and a kubelet: registration, claims, health, two instances at a time."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpushare.client import Client, DaemonUnreachable, RequestRefused
from gpushare.errors import UserError
from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.api.claims import AllocatedClaim, AllocatedDevice
from gpushare.kubernetes.cards import OUTAGE, SchedulableCard
from gpushare.kubernetes.kubelet import dra_plugin
from gpushare.kubernetes.kubelet.dra_plugin import (
    AWAY_SECONDS,
    LEFT_SECONDS,
    ClaimsOfEarlierMode,
    DraPlugin,
    plugin_sockets,
)
from gpushare.protocol.kubernetes import device_name
from tests.stack.kubelet.dra import DRA, HEALTH, DraKubelet
from tests.system.waiting import wait_until
from tests.unit.kubernetes.gpushared import Clock

pytestmark = pytest.mark.gate

GIB = 1 << 30
A = "GPU-AAAAAAAA-0000-0000-0000-000000000000"
B = "GPU-BBBBBBBB-0000-0000-0000-000000000000"
NODE = "node-1"
POD = "4b1f0f3e-0000-4000-8000-000000000001"
CARDS = tuple(SchedulableCard(uuid, 4 * GIB, 4 * GIB, "", 0) for uuid in (A, B))
CLAIM = {"namespace": "ai", "name": "train", "uid": "claim-1"}


class Cluster:
    """The claims of a cluster, by namespace/name."""

    def __init__(self) -> None:
        self.claims: dict[str, AllocatedClaim] = {}

    def read(self, namespace: str, name: str) -> AllocatedClaim:
        try:
            return self.claims[f"{namespace}/{name}"]
        except KeyError:
            raise UserError(f"there is no claim {namespace}/{name}") from None

    def allocate(self, *devices: AllocatedDevice, uid: str = "claim-1") -> None:
        self.claims["ai/train"] = AllocatedClaim(uid, "ai", "train", ("pod-1",), devices)


class Daemon(Client):
    """gpushared's claims; `refusal` is what it answers instead."""

    def __init__(self) -> None:
        self.refusal = ""
        self.is_away: Callable[[], bool] = lambda: False
        self.prepared: dict[str, dict[str, Any]] = {}
        self.followed: set[str] = set()
        self.refused: dict[str, str] = {}
        self.faults: dict[str, str] = {}
        self.registrations = 0

    def registered(self) -> None:
        self.registrations += 1

    def prepare_claim(
        self,
        uid: str,
        *,
        namespace: str,
        name: str,
        pods: Sequence[str],
        devices: Sequence[Any],
        parameters: Mapping[str, str] | None = None,
    ) -> Any:
        if self.is_away():
            raise DaemonUnreachable("gpushared is not running")
        if self.refusal:
            raise RequestRefused(self.refusal)
        wanted = {"name": f"{namespace}/{name}", "pods": list(pods), "devices": list(devices)}
        self.prepared[uid] = {**wanted, "parameters": dict(parameters or {})}
        requests = {one["request"] for one in devices}
        return {"cdi": {each: f"gpushare.io/claim={uid}.{each}" for each in requests}}

    def unprepare_claim(self, uid: str) -> None:
        if self.refusal:
            raise RequestRefused(self.refusal)
        self.prepared.pop(uid, None)

    def claims(self) -> Any:
        return [
            dict(zip(("namespace", "name"), each["name"].split("/"), strict=True))
            for each in self.prepared.values()
        ]

    def follow(self, claim: AllocatedClaim) -> None:
        self.followed.add(claim.uid)

    def refuse(self, claim: AllocatedClaim, why: str) -> None:
        self.refused[claim.uid] = why

    def forget(self, uid: str) -> None:
        self.followed.discard(uid)

    def update_health(self, faults: Mapping[str, str]) -> None:
        self.faults = dict(faults)


def part(
    uuid: str, memory: int | None = GIB, cores: int | None = 40, **more: Any
) -> AllocatedDevice:
    values = {"request": "gpu", "pool": NODE, "share": "share-1", "parameters": {}} | more
    return AllocatedDevice(device=device_name(uuid), memory_bytes=memory, cores=cores, **values)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


Make = Callable[..., DraPlugin]


@pytest.fixture
def make(folder: Path, cluster: Cluster, daemon: Daemon, clock: Clock) -> Iterator[Make]:
    made: list[DraPlugin] = []

    def one(pod_uid: str = "") -> DraPlugin:
        plugin = DraPlugin(
            folder,
            NODE,
            cluster,
            daemon,
            daemon,
            StatusLog(),
            registered=daemon.registered,
            pod_uid=pod_uid,
            clock=clock,
        )
        made.append(plugin)
        plugin.update(CARDS)
        plugin.step()
        return plugin

    yield one
    for plugin in made:
        plugin.close()


@pytest.fixture
def plugin(make: Make) -> DraPlugin:
    return make()


@pytest.fixture
def kubelet(folder: Path, plugin: DraPlugin) -> Iterator[DraKubelet]:  # noqa: ARG001 - it serves
    with DraKubelet(folder) as made:
        made.look()
        yield made


@pytest.mark.parametrize("version", DRA)
def test_a_claim_is_reserved_before_the_kubelet_has_its_answer(
    folder: Path, plugin: DraPlugin, cluster: Cluster, daemon: Daemon, version: str
) -> None:
    assert plugin is not None
    cluster.allocate(part(A, GIB, 40, parameters={"policy": "burst-share"}))
    with DraKubelet(folder, [version]) as old:
        old.look()
        found = old.prepare(CLAIM)
    [answer] = found["claim-1"]["devices"]
    assert answer == {
        "request_names": ["gpu"],
        "pool_name": NODE,
        "device_name": "card-aaaaaaaa-0000-0000-0000-000000000000",
        "cdi_device_ids": ["gpushare.io/claim=claim-1.gpu"],
    }
    prepared = daemon.prepared["claim-1"]
    assert (prepared["name"], prepared["pods"]) == ("ai/train", ["pod-1"])
    amounts = {"memory_bytes": GIB, "cores": 40}
    assert prepared["devices"] == [{"request": "gpu", "card": A, **amounts, "share": "share-1"}]
    assert prepared["parameters"] == {"policy": "burst-share"}
    assert daemon.followed == {"claim-1"}


def test_the_kubelet_is_told_which_request_each_device_is_for(
    kubelet: DraKubelet, cluster: Cluster
) -> None:
    cluster.allocate(part(A, request="train"), part(B, request="serve"), part(A, request="serve"))
    found = kubelet.prepare(CLAIM)["claim-1"]["devices"]
    assert [(one["request_names"], one["device_name"]) for one in found] == [
        (["train"], device_name(A)),
        (["serve"], device_name(B)),
        (["serve"], device_name(A)),
    ]


@pytest.mark.parametrize(
    ("devices", "uid", "reason"),
    [
        ([], "claim-1", "no device of gpu.gpushare.io"),
        ([part(A)], "claim-2", "another claim has its name"),
        ([part("GPU-CCCC")], "claim-1", "no device card-cccc in the pool node-1"),
        ([part(A, pool="node-2")], "claim-1", "in the pool node-2"),
        (
            [part(A, parameters={"class": "online"}), part(B, parameters={"class": "offline"})],
            "claim-1",
            "class is online and offline",
        ),
    ],
)
def test_a_claim_that_cannot_be_prepared_says_why(
    kubelet: DraKubelet,
    cluster: Cluster,
    daemon: Daemon,
    devices: list[AllocatedDevice],
    uid: str,
    reason: str,
) -> None:
    cluster.allocate(*devices, uid=uid)
    assert reason in kubelet.prepare(CLAIM)["claim-1"]["error"]
    assert daemon.prepared == {}
    assert daemon.followed == set()


def test_each_claim_has_an_answer_of_its_own(
    kubelet: DraKubelet, cluster: Cluster, daemon: Daemon
) -> None:
    cluster.allocate(part(A))
    gone = {"namespace": "ai", "name": "gone", "uid": "claim-2"}
    found = kubelet.prepare(gone, CLAIM)
    assert found["claim-2"]["error"] == "there is no claim ai/gone"
    assert found["claim-1"]["devices"]
    daemon.refusal = "the card is lost"
    assert kubelet.prepare(CLAIM)["claim-1"] == {"devices": [], "error": "the card is lost"}
    assert daemon.refused == {"claim-1": "the card is lost"}


def test_a_claim_waits_some_seconds_for_a_gpushared_that_restarts(
    kubelet: DraKubelet,
    cluster: Cluster,
    daemon: Daemon,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dra_plugin, "AGAIN_SECONDS", 0.0)
    cluster.allocate(part(A))
    until = 0.0

    def is_away() -> bool:
        clock.now += 1.0
        return clock.now < until

    daemon.is_away = is_away
    until = clock.now + AWAY_SECONDS / 2
    assert kubelet.prepare(CLAIM)["claim-1"]["devices"]
    until = clock.now + 3 * AWAY_SECONDS
    assert kubelet.prepare(CLAIM)["claim-1"]["error"] == "gpushared is not running"
    assert clock.now < until


def test_a_claim_is_released_once_or_again(
    kubelet: DraKubelet, cluster: Cluster, daemon: Daemon
) -> None:
    cluster.allocate(part(A))
    kubelet.prepare(CLAIM)
    for _ in range(2):
        assert kubelet.unprepare(CLAIM) == {"claim-1": {"error": ""}}
        assert daemon.prepared == {}
        assert daemon.followed == set()
    daemon.refusal = "gpushared is not running"
    assert kubelet.unprepare(CLAIM) == {"claim-1": {"error": "gpushared is not running"}}


def test_a_kubelet_that_restarts_finds_the_socket_and_one_that_vanished_is_made_again(
    folder: Path, plugin: DraPlugin, kubelet: DraKubelet, cluster: Cluster
) -> None:
    sockets = plugin_sockets(folder)
    cluster.allocate(part(A))
    for vanished in (None, sockets.service, sockets.registration):
        if vanished is not None:
            vanished.unlink()
        plugin.step()
        kubelet.forget()
        kubelet.look()
        assert kubelet.prepare(CLAIM)["claim-1"]["devices"]


@pytest.mark.parametrize("version", HEALTH)
def test_a_kubelet_is_told_the_health_of_each_card(
    folder: Path, plugin: DraPlugin, daemon: Daemon, version: str
) -> None:
    def healths() -> list[str]:
        return [each["health"] for each in driver.health.values()]

    with DraKubelet(folder, ["v1.DRAPlugin", version]) as kubelet:
        kubelet.look()
        driver = kubelet.driver
        wait_until(lambda: healths() == ["HEALTHY", "HEALTHY"])
        first, second = CARDS
        sick = SchedulableCard(A, 4 * GIB, 0, "unhealthy: XID 79", 0)
        plugin.update((sick, second))
        wait_until(lambda: healths() == ["UNHEALTHY", "HEALTHY"])
        report = driver.health[device_name(A)]
        assert (report["device"]["pool_name"], report["message"]) == (NODE, "unhealthy: XID 79")
        assert daemon.faults == {device_name(A): "unhealthy: XID 79"}
        # A card that takes no new containers works; of one that gpushared does not see, who knows.
        cordoned = SchedulableCard(A, 4 * GIB, 0, "cordoned: repair", 0)
        plugin.update((cordoned, SchedulableCard(B, 4 * GIB, 0, OUTAGE, 0)))
        wait_until(lambda: healths() == ["HEALTHY", "UNKNOWN"])
        plugin.update(CARDS)
        wait_until(lambda: healths() == ["HEALTHY", "HEALTHY"])
        assert first == CARDS[0]


@pytest.mark.parametrize("ends_first", ["old", "new"])
def test_two_instances_of_a_rolling_update_answer_for_each_other(
    folder: Path, make: Make, cluster: Cluster, daemon: Daemon, ends_first: str
) -> None:
    old = make(POD)
    assert not old.is_registered
    with DraKubelet(folder) as kubelet:
        kubelet.look()
        cluster.allocate(part(A))
        kubelet.prepare(CLAIM)
        new = make(POD.replace("1", "2"))
        kubelet.look()
        assert len(kubelet.drivers) == 2
        assert (old.is_registered, new.is_registered) == (True, True)
        {"old": old, "new": new}[ends_first].close()
        kubelet.look()
        assert len(kubelet.drivers) == 1
        assert kubelet.prepare(CLAIM)["claim-1"]["devices"]
        assert kubelet.unprepare(CLAIM) == {"claim-1": {"error": ""}}
    assert daemon.prepared == {}


def test_sockets_of_an_instance_that_was_killed_are_removed(
    folder: Path, make: Make, cluster: Cluster
) -> None:
    killed = plugin_sockets(folder, POD)
    for path in (killed.service, killed.registration):
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    running = make(POD.replace("1", "2"))
    make(POD.replace("1", "3"))
    running.step()
    with DraKubelet(folder) as kubelet:
        kubelet.look()
        assert len(kubelet.drivers) == 2
        cluster.allocate(part(A))
        assert kubelet.prepare(CLAIM)["claim-1"]["devices"]
    assert not killed.service.exists()


def test_claims_that_are_left_of_mode_dra_are_released_and_no_other_is_prepared(
    folder: Path, daemon: Daemon, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.prepared = {"claim-1": {"name": "ai/train"}}
    left = ClaimsOfEarlierMode(folder, NODE, daemon, StatusLog(), clock=clock)
    with DraKubelet(folder) as kubelet:
        left.update(CARDS)
        left.step()
        kubelet.look()
        refused = kubelet.prepare({**CLAIM, "uid": "claim-2"})
        assert "no longer in mode dra" in refused["claim-2"]["error"]
        clock.now += LEFT_SECONDS
        left.step()
        assert "claims of mode dra: ai/train: delete their pods" in capsys.readouterr().err
        assert kubelet.unprepare(CLAIM) == {"claim-1": {"error": ""}}
        clock.now += LEFT_SECONDS
        left.step()
        kubelet.look()
        assert kubelet.drivers == {}
