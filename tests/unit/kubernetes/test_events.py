# SPDX-License-Identifier: Apache-2.0
"""Events on pods: what happened to their GPU, once, not too often, and nothing about others."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare.client import DaemonUnreachable
from gpushare.events import KEPT
from gpushare.kubernetes.api.events import (
    BURST,
    COUNT_SECONDS,
    EVENTS,
    PERIOD_SECONDS,
    TEXTS,
    EventRecorder,
    EventReporter,
    KubernetesEvent,
    PodContainer,
    message_of,
)
from gpushare.kubernetes.api.server import ApiServer, path_of
from tests.stack.api_server import Body, StandInApiServer
from tests.unit.kubernetes.gpushared import NOW, Clock, FakeGpushared

GIB = 1 << 30
ABOUT = PodContainer("team-a", "train-0", "uid-1", "train")


def tenant(key: str, namespace: str, pod: str, uid: str, container: str) -> dict[str, Any]:
    card = {
        "uuid": "GPU-1",
        "quota_bytes": 4 * GIB,
        "is_capped": True,
        "share_percent": 30.0,
        "cores": 30,
        "compute": {"throttled": {"60s": 0.0}},
    }
    return {
        "key": key,
        "name": f"{namespace}/{pod}/{container}",
        "pod": {"namespace": namespace, "name": pod, "uid": uid, "container": container},
        "denied_allocations": 0,
        "cards": [card],
    }


@pytest.fixture
def node(daemon: FakeGpushared) -> FakeGpushared:
    daemon.containers.append(tenant("k1", "team-a", "train-0", "uid-1", "train"))
    return daemon


@pytest.fixture
def recorder(api: ApiServer, clock: Clock) -> EventRecorder:
    return EventRecorder(api, "n", clock)


@pytest.fixture
def reporter(node: FakeGpushared, recorder: EventRecorder) -> EventReporter:
    return EventReporter(node, recorder, lambda: NOW)


def events(cluster: StandInApiServer, namespace: str = "team-a") -> list[Body]:
    return cluster.of(path_of(EVENTS, namespace=namespace))


def said(cluster: StandInApiServer) -> list[str]:
    return [one["message"] for one in events(cluster)]


def test_an_event_names_pod_and_container(
    reporter: EventReporter, node: FakeGpushared, cluster: StandInApiServer
) -> None:
    node.happens("over-quota-frozen", used_bytes=6 * GIB, limit_bytes=4 * GIB)
    reporter.step()
    (made,) = events(cluster)
    assert made["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team-a",
        "name": "train-0",
        "uid": "uid-1",
        "fieldPath": "spec.containers{train}",
    }
    assert (made["reason"], made["type"], made["count"]) == ("GpuOverQuota", "Warning", 1)
    assert made["message"] == (
        "container train: used 6 GiB of GPU memory, over its limit of 4 GiB, and was frozen"
    )
    assert made["source"] == {"component": "gpushare", "host": "n"}
    assert made["firstTimestamp"] == "2026-05-28T20:26:41Z"


def test_a_restart_reports_nothing_twice(
    node: FakeGpushared, recorder: EventRecorder, cluster: StandInApiServer, api: ApiServer
) -> None:
    node.happens("tenant-killed", reason="far over its quota")
    EventReporter(node, recorder, lambda: NOW + 3600).step()
    assert not events(cluster), "it is long past"
    EventReporter(node, recorder, lambda: NOW).step()
    EventReporter(node, EventRecorder(api, "n"), lambda: NOW).step()
    assert len(events(cluster)) == 1


def test_what_pods_need_not_know_is_not_reported(
    reporter: EventReporter, node: FakeGpushared, cluster: StandInApiServer
) -> None:
    node.happens("tenant-bound", pid=1)
    node.happens("daemon-ready", key="", version="1")
    node.happens("tenant-killed", key="of no pod", reason="")
    reporter.step()
    assert not events(cluster)


REFUSED = {"namespace": "team-b", "name": "big", "uid": "uid-9", "container": "main"}


@pytest.mark.parametrize("named", [{"pod": REFUSED}, {"pod_uid": "uid-9"}])
def test_a_refused_container_is_named_by_the_event_itself(
    reporter: EventReporter, node: FakeGpushared, cluster: StandInApiServer, named: dict[str, Any]
) -> None:
    error = "no card has room for 200 GiB"
    node.happens("request-refused", key="", name="team-b/big/main", error=error, **named)
    reporter.step()
    (made,) = events(cluster, "team-b")
    assert made["message"] == "container main: no card has room for 200 GiB"
    assert made["involvedObject"]["uid"] == "uid-9"


def test_of_200_pods_at_once_every_one_hears_of_its_own(
    reporter: EventReporter, node: FakeGpushared, cluster: StandInApiServer
) -> None:
    for number in range(200):
        name, uid = f"team-{number % 7}/pod-{number}/main", f"uid-{number}"
        node.happens("request-refused", key="", name=name, pod_uid=uid, error="no room")
    busy = [429, 503, None] * 2
    cluster.fault = lambda *_: busy.pop() if busy else None
    reporter.step()
    made = [one for number in range(7) for one in events(cluster, f"team-{number}")]
    told = {one["involvedObject"]["uid"] for one in made}
    assert told == {f"uid-{number}" for number in range(200)}
    assert len(made) == 200


def test_a_lost_card_is_told_to_every_pod_on_it(
    reporter: EventReporter, node: FakeGpushared, cluster: StandInApiServer
) -> None:
    node.containers.append(tenant("k2", "team-b", "serve-0", "uid-2", "serve"))
    node.containers.append(tenant("k3", "team-b", "idle-0", "uid-3", "idle"))
    node.containers[2]["cards"][0]["uuid"] = "GPU-2"
    node.happens("card-unhealthy", key="", card="GPU-1", reason="XID 79")
    reporter.step()
    assert said(cluster) == ["container train: a card of this container is unhealthy: XID 79"]
    assert [one["involvedObject"]["name"] for one in events(cluster, "team-b")] == ["serve-0"]


def test_pods_of_other_namespaces_are_never_named(
    reporter: EventReporter, node: FakeGpushared, cluster: StandInApiServer
) -> None:
    node.containers.append(tenant("k2", "payroll", "salary-0", "uid-2", "secret"))
    node.containers.append(tenant("k3", "team-a", "serve-0", "uid-3", "serve"))
    reason = "payroll/salary-0/secret and payroll/salary-0 lack memory; team-a/serve-0 does not"
    node.happens("tenant-killed", reason=reason)
    reporter.step()
    (message,) = said(cluster)
    assert message == (
        "container train: all processes were killed: another container and another container "
        "lack memory; team-a/serve-0 does not"
    )


def test_a_refused_allocation_is_reported_when_it_happens(
    reporter: EventReporter, node: FakeGpushared, cluster: StandInApiServer
) -> None:
    node.containers[0]["denied_allocations"] = 7  # before the first look
    reporter.step()
    assert not events(cluster)
    node.containers[0]["denied_allocations"] = 8
    reporter.step()
    reporter.step()
    (message,) = said(cluster)
    assert message == (
        "container train: an allocation of GPU memory was refused: "
        "it would exceed the quota of 4 GiB"
    )
    node.containers[0]["denied_allocations"] = 0  # gpushared counts anew
    reporter.step()
    assert len(events(cluster)) == 1


def test_a_container_that_waits_for_long_is_reported_once_each_time(
    reporter: EventReporter, node: FakeGpushared, cluster: StandInApiServer
) -> None:
    compute = node.containers[0]["cards"][0]["compute"]
    for ratio in (0.7, 0.7, 0.1, None, 0.9):
        compute["throttled"]["60s"] = ratio
        reporter.step()
    assert said(cluster) == [
        f"container train: waited for the card for {percent} % of the last minute: its compute "
        "share is 30 %"
        for percent in (70, 90)
    ]


def test_the_same_event_again_raises_a_count_that_is_written_now_and_then(
    recorder: EventRecorder, cluster: StandInApiServer, clock: Clock
) -> None:
    for number in range(50):
        recorder.record(event(at=NOW + number, number=str(number)))
        recorder.flush()
    (made,) = events(cluster)
    assert made["count"] == 1
    assert len(cluster.requests) == 1
    clock.now += COUNT_SECONDS
    recorder.flush()
    recorder.flush()
    (made,) = events(cluster)
    assert (made["count"], made["lastTimestamp"]) == (50, "2026-05-28T20:27:29Z")
    assert len(cluster.requests) == 2


def event(
    message: str = "m", about: PodContainer = ABOUT, at: float = NOW, number: str = "1"
) -> KubernetesEvent:
    return KubernetesEvent(about, "GpuFrozen", "Warning", message, at, number)


def test_a_pod_that_causes_many_events_is_bounded_and_others_are_not(
    recorder: EventRecorder, cluster: StandInApiServer, clock: Clock
) -> None:
    for number in range(100):
        recorder.record(event(f"message {number}"))
    assert len(events(cluster)) == BURST
    assert recorder.suppressed == 100 - BURST
    recorder.record(event(about=PodContainer("team-b", "serve", "uid-2", "c")))
    assert len(events(cluster, "team-b")) == 1
    clock.now += PERIOD_SECONDS
    recorder.record(event("later"))
    recorder.record(event("too much again"))
    assert len(events(cluster)) == BURST + 1


def test_an_event_that_the_server_forgot_is_made_anew(
    recorder: EventRecorder, cluster: StandInApiServer, clock: Clock
) -> None:
    recorder.record(event())
    (made,) = events(cluster)
    cluster.remove(path_of(EVENTS, made["metadata"]["name"], "team-a"))
    recorder.record(event(number="2"))
    clock.now += COUNT_SECONDS
    recorder.flush()
    recorder.record(event(number="3"))
    assert len(events(cluster)) == 1
    recorder.record(event(at=NOW + 3500, number="4"))
    assert len(events(cluster)) == 2, "an hour later"


def test_a_namespace_that_is_deleted_is_no_fault(
    recorder: EventRecorder, cluster: StandInApiServer
) -> None:
    cluster.fault = lambda *_: 404
    recorder.record(event())
    recorder.flush()


def test_what_could_not_be_reported_is_reported_later(
    reporter: EventReporter, node: FakeGpushared, cluster: StandInApiServer
) -> None:
    node.happens("tenant-frozen", reason="a")
    node.happens("tenant-thawed", by="operator")
    answers: list[int | None] = [None, 403]
    cluster.fault = lambda *_: answers.pop(0) if answers else None
    with pytest.raises(Exception, match="403"):
        reporter.step()
    node.is_away = True
    with pytest.raises(DaemonUnreachable):
        reporter.step()
    node.is_away = False
    reporter.step()
    assert [one["reason"] for one in events(cluster)] == ["GpuFrozen", "GpuResumed"]
    assert [one["count"] for one in events(cluster)] == [1, 1]


def test_an_event_of_the_longest_pod_name_has_a_valid_name(
    recorder: EventRecorder, cluster: StandInApiServer
) -> None:
    recorder.record(event(about=PodContainer("team-a", "p" * 253, "u", "c")))
    (made,) = events(cluster)
    assert len(made["metadata"]["name"]) <= 253


@pytest.mark.parametrize("name", TEXTS)
def test_an_event_of_another_version_of_gpushared_still_has_a_message(name: str) -> None:
    message = message_of(TEXTS[name], {}, "c")
    assert message.startswith("container c:")
    assert "{" not in message
    assert name in KEPT


def test_a_long_message_is_cut() -> None:
    assert len(message_of(TEXTS["request-refused"], {"error": "x" * 5000}, "c")) == 1024
