# SPDX-License-Identifier: Apache-2.0
"""Templates: what a name says, and that each pod that waits gets its own, whatever happens."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.api.events import EVENTS
from gpushare.kubernetes.api.server import ApiServer, path_of
from gpushare.kubernetes.api.slices import devices_of, parse_quantity
from gpushare.kubernetes.templates import (
    AGAIN_SECONDS,
    ALTERNATIVES_MOST,
    NAME,
    PODS,
    REASON,
    REFUSED_SECONDS,
    TEMPLATES,
    WANTED,
    TemplateMaker,
    content,
    reduced,
)
from tests.stack.api_server import Body, Refused, StandInApiServer
from tests.unit.kubernetes.gpushared import Clock
from tests.unit.kubernetes.in_process import InProcessApiServer
from tests.unit.kubernetes.made import GIB, card, node

NEW = "gpushare-4096mi-30-1"
MIB = 1 << 20


def devices(*gib: int) -> list[Body]:
    return devices_of(node(*(card(i, schedulable_bytes=n * GIB) for i, n in enumerate(gib))))


def devices_in(name: str, *gib: int) -> Any:
    made = content(name, devices(*gib))
    assert made is not None
    return made["spec"]["devices"]


@pytest.mark.parametrize(
    ("name", "cards", "amounts"),
    [
        (NEW, 1, {"memory": "4096Mi", "cores": "30"}),
        ("gpushare-1mi-0-16", 16, {"memory": "1Mi", "cores": "0"}),
        ("gpushare-999999999mi-100-10", 10, {"memory": "999999999Mi", "cores": "100"}),
        ("gpushare-all-0-1", 1, None),
        ("gpushare-all-0-2", 2, None),
        ("gpushare-all-50-1", 1, {"cores": "50"}),
    ],
)
def test_a_name_says_all_of_the_template(
    name: str, cards: int, amounts: dict[str, str] | None
) -> None:
    exactly: Body = {"deviceClassName": "gpushare", "count": cards}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    wanted: Body = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if cards > 1:
        each = {"requests": ["gpu"], "distinctAttribute": "gpu.gpushare.io/uuid"}
        wanted["constraints"] = [each]
    assert content(name) == {"spec": {"devices": wanted}}


def test_other_names_are_not_ours() -> None:
    others = """
        4096mi-30 4096mi-30-1-1 4096mi-30-0 4096mi-30-17 4096mi-30-01 4096mi-101-1 4096mi-030-1
        4096mi--1 4096mi-30-1x 0mi-30-1 04096mi-30-1 1000000000mi-30-1 4096Mi-30-1 4096-30-1 mi-30-1
        0pct-30-1 100pct-30-1 050pct-30-1 1.5pct-30-1 all-101-1 all-0 own x ٤mi-30-1
    """
    names = [f"gpushare-{rest}" for rest in re.findall(r"\S+", others)]
    assert [name for name in names if NAME.fullmatch(name) or content(name, devices(80))] == []


def bands(name: str, *gib: int) -> list[tuple[int, float, int]]:
    """Return of each alternative the memory of cards from and below, and the amount, in MiB."""
    found = []
    for one in devices_in(name, *gib)["requests"][0]["firstAvailable"]:
        [selector] = one["selectors"]
        quantities = re.findall(r'quantity\("(\w+)"\)\) (>= 0|< 0)', selector["cel"]["expression"])
        limits = {how: parse_quantity(text) // MIB for text, how in quantities}
        amount = parse_quantity(one["capacity"]["requests"]["memory"]) // MIB
        found.append((limits[">= 0"], limits.get("< 0", float("inf")), amount))
    return found


def test_a_percentage_has_an_alternative_for_each_size_of_card_the_largest_first() -> None:
    assert content("gpushare-50pct-30-1") is None
    assert bands("gpushare-50pct-30-1", 139) == [(139 << 10, float("inf"), 71168)]
    found = devices_in("gpushare-33pct-30-2", 24, 139, 24, 80)
    each = {"requests": ["gpu"], "distinctAttribute": "gpu.gpushare.io/uuid"}
    assert found["constraints"] == [each]
    compared = 'device.capacity["gpu.gpushare.io"].memory.compareTo(quantity("%s")) '
    expression = f"{compared % '80Gi'}>= 0 && {compared % '139Gi'}< 0"
    assert found["requests"][0]["firstAvailable"][1] == {
        "name": "gpu-1",
        "deviceClassName": "gpushare",
        "count": 2,
        "capacity": {"requests": {"memory": "27033Mi", "cores": "30"}},
        "selectors": [{"cel": {"expression": expression}}],
    }
    assert bands("gpushare-33pct-30-2", 24, 139, 24, 80) == [
        (139 << 10, float("inf"), 46970),
        (80 << 10, 139 << 10, 27033),
        (24 << 10, 80 << 10, 8110),
    ]


def test_of_more_sizes_than_a_request_may_have_those_near_another_get_a_bit_less() -> None:
    sizes = (141, 140, 96, 80, 48, 40, 24, 16, 8, 4)
    found = bands("gpushare-50pct-0-1", *sizes)
    assert len(found) == ALTERNATIVES_MOST
    for size in sizes:
        [amount] = [amount for least, below, amount in found if least <= size << 10 < below]
        assert size << 9 >= amount > 0.8 * (size << 9)
    assert bands("gpushare-1pct-0-1", *sizes)[-1][2] == 40
    tiny = [{"capacity": {"memory": {"value": "64Mi"}}}]
    assert "'1Mi'" in str(content("gpushare-1pct-0-1", tiny)), "a claim of nothing is refused"


class ClaimedCluster:
    """A cluster with pods, Kubernetes' claim controller, and makers that come and go."""

    def __init__(self, cluster: StandInApiServer, clock: Clock) -> None:
        self.cluster, self.clock = cluster, clock
        self.api: ApiServer = InProcessApiServer(cluster, patience_seconds=0.0)
        self.devices: list[Body] = []
        self.maker = self.another()

    def another(self) -> TemplateMaker:
        return TemplateMaker(self.api, StatusLog(), "templates-0", self.clock, lambda: 1e9)

    def pod(self, name: str, *templates: str, namespace: str = "ai", **metadata: Any) -> Body:
        claims = [
            {"name": f"gpushare-{i}", "resourceClaimTemplateName": one}
            for i, one in enumerate(templates)
        ]
        labels = {"gpushare.io/templates": "wanted"}
        body = {"metadata": {"labels": labels, **metadata}, "spec": {"resourceClaims": claims}}
        return self.cluster.put(path_of(PODS, name, namespace), body)

    def step(self, maker: TemplateMaker | None = None, later: float = 0.0) -> list[str]:
        """Have a maker make what is due; return what was created in this step, with refusals."""
        self.clock.now += later
        pods = self.api.all_of(PODS, WANTED, reduced)[0]
        before = len(self.cluster.requests)
        (maker or self.maker).step(pods, self.devices)
        return [one.rpartition("/namespaces/")[2] for one in self.cluster.requests[before:]]

    def control_claims(self) -> list[str]:
        """Make claims of the pods whose templates are all there; return those that still wait."""
        waiting = []
        there = [one["metadata"] for one in self.cluster.of(TEMPLATES)]
        made = {(one["namespace"], one["name"]) for one in there}
        for pod in self.api.all_of(PODS, WANTED)[0]:
            namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            claims = pod["spec"]["resourceClaims"]
            if {(namespace, one["resourceClaimTemplateName"]) for one in claims} <= made:
                statuses = [{"name": one["name"], "resourceClaimName": "c"} for one in claims]
                status = {"resourceClaimStatuses": statuses}
                self.cluster.put(path_of(PODS, name, namespace), {**pod, "status": status})
            else:
                waiting.append(name)
        return waiting

    def templates(self, namespace: str = "ai") -> set[str]:
        found = self.cluster.of(path_of(TEMPLATES, namespace=namespace))
        return {one["metadata"]["name"] for one in found}

    def events(self) -> list[tuple[str, str]]:
        found = self.cluster.of(EVENTS)
        assert all(one["reason"] == REASON and one["type"] == "Warning" for one in found)
        return [(one["involvedObject"]["name"], one["message"]) for one in found]

    def refuse(self, code: int, message: str, namespace: str = "ai", name: str = "") -> None:
        """Have the server answer so to templates in a namespace; 0: no longer."""
        answer = type(self.cluster).answer.__get__(self.cluster)

        def refusing(method: str, path: str, query: dict[str, str], body: Body | None) -> Body:
            is_one = body is not None and name in {"", body["metadata"]["name"]}
            if code and is_one and path == path_of(TEMPLATES, namespace=namespace):
                raise Refused(code, "Refused", message)
            made: Body = answer(method, path, query, body)
            return made

        self.cluster.answer = refusing  # type: ignore[method-assign]


@pytest.fixture
def claimed(cluster: StandInApiServer, clock: Clock) -> ClaimedCluster:
    return ClaimedCluster(cluster, clock)


def test_a_pod_gets_the_templates_it_waits_for_and_owns_them(claimed: ClaimedCluster) -> None:
    pod = claimed.pod("p", NEW, "gpushare-all-0-1", "mine", "gpushare-own", NEW)
    assert claimed.step() == ["ai/resourceclaimtemplates"] * 2
    [made] = [one for one in claimed.cluster.of(TEMPLATES) if one["metadata"]["name"] == NEW]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}
    assert made["metadata"]["ownerReferences"] == [owner]
    assert made["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "gpushare"}
    assert (made["metadata"]["namespace"], made["spec"]) == ("ai", content(NEW))
    assert claimed.templates() == {NEW, "gpushare-all-0-1"}


def test_pods_that_need_nothing_get_nothing(claimed: ClaimedCluster) -> None:
    claimed.pod("goes", NEW, deletionTimestamp="2026-11-28T00:00:00Z")
    claimed.pod("other", NEW, labels={})
    placed = claimed.pod("placed", NEW)
    claimed.cluster.put(path_of(PODS, "placed", "ai"), {**placed, "spec": {"nodeName": "n"}})
    has = claimed.pod("has", NEW)
    status = {"resourceClaimStatuses": [{"name": "gpushare-0"}]}  # no claim was needed
    claimed.cluster.put(path_of(PODS, "has", "ai"), {**has, "status": status})
    claimed.cluster.put(path_of(PODS, "none", "ai"), {"metadata": has["metadata"], "spec": {}})
    assert claimed.step() == []


def test_what_still_waits_is_made_again_once_for_each_name(claimed: ClaimedCluster) -> None:
    for name in "abc":
        claimed.pod(name, NEW)
    claimed.pod("d", NEW, namespace="other")
    both = ["ai/resourceclaimtemplates", "other/resourceclaimtemplates"]
    assert claimed.step() == both
    assert claimed.step(later=AGAIN_SECONDS / 2) == []
    claimed.cluster.remove(path_of(TEMPLATES, NEW, "ai"))  # by somebody, or with its owner
    assert claimed.step(later=AGAIN_SECONDS / 2) == both
    assert claimed.control_claims() == []
    assert claimed.step(later=AGAIN_SECONDS) == []


def test_a_template_of_that_name_that_somebody_else_made_is_left_alone(
    claimed: ClaimedCluster,
) -> None:
    own = claimed.cluster.put(path_of(TEMPLATES, NEW, "ai"), {"spec": {"of": "another"}})
    claimed.pod("p", NEW)
    claimed.step()
    assert claimed.cluster.of(TEMPLATES) == [own]
    claimed.pod("q", "gpushare-all-0-1")
    assert claimed.step() == ["ai/resourceclaimtemplates"], "it is no failure of the namespace"
    assert (claimed.control_claims(), claimed.events()) == ([], [])


@pytest.mark.parametrize("code", [400, 403, 422])
def test_a_refusal_is_an_event_on_each_pod_once_and_is_tried_again(
    claimed: ClaimedCluster, code: int
) -> None:
    claimed.refuse(code, "exceeded quota: none, used: 0")
    claimed.pod("a", NEW)
    claimed.pod("b", NEW)
    claimed.step()
    told = f"template {NEW}: exceeded quota: none, used: 0"
    assert sorted(claimed.events()) == [("a", told), ("b", told)]
    assert claimed.step(later=REFUSED_SECONDS - 1) == []
    assert claimed.step(later=1) == ["ai/resourceclaimtemplates"]
    assert claimed.step(claimed.another())
    assert len(claimed.events()) == 2, "nor by one that was restarted"
    claimed.refuse(code, "denied by a policy")
    claimed.step(later=REFUSED_SECONDS)
    assert len(claimed.events()) == 4
    claimed.refuse(0, "")
    claimed.step(later=REFUSED_SECONDS)
    assert claimed.control_claims() == []
    asked = {one.partition("?")[0] for one in claimed.cluster.requests}
    made = (path_of(one, namespace="ai") for one in (TEMPLATES, EVENTS))
    assert asked == {f"GET {PODS}", *(f"POST {path}" for path in made)}, "no other right"


def test_a_namespace_that_is_being_deleted_gets_neither_template_nor_event(
    claimed: ClaimedCluster,
) -> None:
    why = "unable to create new content in namespace ai because it is being terminated"
    claimed.refuse(403, f"{NEW} is forbidden: {why}")
    claimed.pod("p", NEW)
    assert claimed.step() == ["ai/resourceclaimtemplates"]
    assert claimed.step(later=AGAIN_SECONDS) == []


@pytest.mark.parametrize("code", [401, 409, 429, 500, 503])
def test_a_namespace_that_fails_is_asked_less_often_and_holds_up_no_other(
    claimed: ClaimedCluster, code: int
) -> None:
    claimed.refuse(code, "not now")
    for number in range(10):
        claimed.pod(f"p{number}", f"gpushare-{number + 1}mi-0-1")
    claimed.pod("q", NEW, namespace="other")
    steps = [claimed.step(later=AGAIN_SECONDS) for _ in range(60)]
    assert steps[0] == ["ai/resourceclaimtemplates", "other/resourceclaimtemplates"]
    assert 8 <= sum("ai/resourceclaimtemplates" in one for one in steps) <= 20
    assert max(one.count("ai/resourceclaimtemplates") for one in steps) == 1
    assert claimed.events() == []
    claimed.refuse(0, "")
    claimed.step(later=60)
    assert claimed.control_claims() == []
    claimed.refuse(code, "not now")
    claimed.pod("r", NEW)
    assert claimed.step() == claimed.step(later=AGAIN_SECONDS) == ["ai/resourceclaimtemplates"]


def test_a_namespace_whose_policies_are_slow_holds_up_no_other(claimed: ClaimedCluster) -> None:
    def slow(method: str, path: str) -> None:
        if method == "POST" and "/ai/" in path:
            claimed.clock.now += 4.0

    claimed.cluster.fault = slow
    for number in range(5):
        claimed.pod(f"p{number}", f"gpushare-{number + 1}mi-0-1")
    claimed.pod("q", NEW, namespace="other")
    assert claimed.step() == ["ai/resourceclaimtemplates", "other/resourceclaimtemplates"]
    for _ in range(4):
        claimed.step(later=AGAIN_SECONDS)
        asked = claimed.step(later=AGAIN_SECONDS)
        assert asked.count("ai/resourceclaimtemplates") == 1
    assert len(claimed.templates()) == 5


def test_a_template_that_always_fails_does_not_hold_up_others_of_its_namespace(
    claimed: ClaimedCluster,
) -> None:
    claimed.refuse(500, "failed calling webhook", name="gpushare-1mi-0-1")
    for number in range(5):
        claimed.pod(f"p{number}", f"gpushare-{number + 1}mi-0-1")
    for _ in range(5):
        claimed.step(later=REFUSED_SECONDS)
    assert claimed.control_claims() == ["p0"]


def test_an_event_that_cannot_be_written_holds_up_nothing(claimed: ClaimedCluster) -> None:
    claimed.refuse(403, "denied by a policy")
    claimed.cluster.fault = lambda _method, path: 403 if path.endswith("/events") else None
    claimed.pod("p", NEW)
    claimed.pod("q", NEW, namespace="other")
    claimed.step()
    assert (claimed.templates("other"), claimed.events()) == ({NEW}, [])
    claimed.cluster.fault = lambda *_: None
    claimed.step(later=REFUSED_SECONDS)
    assert len(claimed.events()) == 1


def test_a_percentage_waits_for_a_card_and_is_made_once_there_is_one(
    claimed: ClaimedCluster,
) -> None:
    claimed.pod("p", "gpushare-50pct-0-1")
    assert claimed.step() == []
    claimed.devices = devices(80, 24)
    assert claimed.step() == ["ai/resourceclaimtemplates"]
    [made] = claimed.cluster.of(TEMPLATES)
    assert made["spec"] == content("gpushare-50pct-0-1", claimed.devices)


@pytest.mark.parametrize("makers", ["one", "two", "restarted"])
def test_500_pods_of_500_sizes_get_theirs_whatever_happens_between_two_steps(
    claimed: ClaimedCluster, makers: str
) -> None:
    failures = {number: (500, 429, "drop", 504)[number % 4] for number in range(0, 500, 23)}
    asked = iter(range(100_000))
    claimed.cluster.fault = lambda method, _path: (
        failures.pop(next(asked), None) if method == "POST" else None
    )
    names = [f"gpushare-{number}mi-{number % 101}-{1 + number % 16}" for number in range(1, 501)]
    both = [claimed.maker, claimed.another()]
    for number, name in enumerate(names):
        claimed.pod(f"p{number}", name, namespace=f"team-{number % 5}")
        if number % 100 == 99:
            for maker in both[: 2 if makers == "two" else 1]:
                claimed.step(claimed.another() if makers == "restarted" else maker)
            if number == 299:
                claimed.control_claims()
                for one in claimed.cluster.of(TEMPLATES)[::3]:  # by somebody
                    claimed.cluster.remove(
                        path_of(TEMPLATES, one["metadata"]["name"], one["metadata"]["namespace"])
                    )
    for _ in range(80):
        claimed.step(claimed.another() if makers == "restarted" else None, later=30)
        if not claimed.control_claims():
            break
    pods = claimed.cluster.of(PODS)
    assert len(pods) == 500
    assert all(pod["status"]["resourceClaimStatuses"] for pod in pods)
    assert not claimed.events()
    claimed.step()
    assert not claimed.maker._attempts, "nothing is kept of pods that have their claims"
    assert not claimed.maker._backoffs
