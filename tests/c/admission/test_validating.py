# SPDX-License-Identifier: Apache-2.0
"""The validating policy refuses what a node refuses, and recorded limits of vendors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pytest
from packages.validating_policy import STRICTNESS, Strictness, policy
from packages.vendor_limits import vendor_limits

from gpushare.daemon.lifecycle.scheduled import of_another_mode
from gpushare.daemon.limits import UNSUPPORTED
from gpushare.manifest import read
from gpushare.manifest.request import request_on_node
from gpushare.protocol.kubernetes import NodeMode
from gpushare.quota.keys import KEYS, Choice, Duration, PercentOfMemory, WholeNumber
from gpushare.quota.request_policy import Dialects, RequestPolicy, profile
from tools.admission import Request, decide, failing

pytestmark = pytest.mark.needs("admission")

POLICIES = {one: failing(policy(one)) for one in STRICTNESS}


PROFILES = {"small": profile("small", {"memory": "4GiB"})}


PLAIN = RequestPolicy(profiles=PROFILES)


def pod(
    annotations: dict[str, str],
    containers: tuple[str, ...] = ("train",),
    init: tuple[str, ...] = (),
    sidecars: tuple[str, ...] = (),
    **spec: Any,
) -> dict[str, Any]:
    first = [{"name": name, "image": "i"} for name in init]
    first += [{"name": name, "image": "i", "restartPolicy": "Always"} for name in sidecars]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "annotations": annotations},
        "spec": {
            "containers": [{"name": name, "image": "i"} for name in containers],
            **({"initContainers": first} if first else {}),
            **spec,
        },
    }


def all_refused(bodies: Iterable[dict[str, Any]], strictness: Strictness) -> list[list[str]]:
    """Return the messages for each object."""
    return [one.messages for one in decide([POLICIES[strictness]], map(Request, bodies))]


def refused(body: dict[str, Any], strictness: Strictness) -> list[str]:
    (messages,) = all_refused([body], strictness)
    return messages


def on_node(body: dict[str, Any], terms: RequestPolicy) -> Iterator[str]:
    """Yield why a node refuses containers of a pod, whatever its cards are."""
    file = read("f", json.dumps(body))
    for container in file.containers:
        found = request_on_node(container, file, terms_of=lambda _: terms)
        if found.refused:
            yield found.refused
        elif found.requested and found.effective:
            quota, whole = found.requested.quota, found.effective.kind == "exclusive"
            if (quota.backend or "") in UNSUPPORTED and not (
                whole and quota.backend == "exclusive"
            ):
                yield str(quota.refuse("backend", *UNSUPPORTED[quota.backend or ""]))


VALUES = {
    name: (
        ["1", " 7 ", "007", "100", "0", "101", "-1", "1.5", "x", ""]
        if isinstance(key.parse, WholeNumber)
        else ["1", " 7 ", "007", "100", "0", "101", "12.5", "100.0", "100.01", "0.01", "0.0", "00",
              "80/3", "100/1", "101/1", "0/3", "1/0", "1/140", "1/2/3", "1.5/2", "/3", "5 %", ""]
        if isinstance(key.parse, PercentOfMemory)
        else [*key.parse.words, *key.parse.short, "other", " ", key.parse.words[0].upper()]
        if isinstance(key.parse, Choice)
        else ["0", "0,1", "0, 1", "0,0", "GPU-4f1c", "0,,1", "", "A100",
              ",".join("0123456789abcdefgh")]
        if name in {"devices", "allow", "deny"}
        else ["90s", "30m", "2h", " 7d ", "0s", "01h", "1000000s", "2 h", "2H", "never", "30", "",
              "1h30m"]
        if isinstance(key.parse, Duration)
        else ["small", " small ", "Small", "-x", "a b", ""]
        if name in {"profile", "remote"}
        else [">=8.0", "8.0+", "> 7.5,<=9.0", "=8.9", ">=8.0,>=8.0", "8.0", ">=8", "sm_80", ""]
        if name == "compute-capability"
        else ["4GiB", "8g", "2048 MiB", "1.5GiB", "512m", "1024B", "4", "4G", "4GB", "4gB", "0",
              "0.0GiB", "0.1GiB", "0.3B", "4Q", "4QiB", "GiB", "", " 6Gi ", "1.5", "3TiB", "4 G",
              "a b"]
    )
    for name, key in KEYS.items()
}  # fmt: skip


def test_a_value_is_refused_where_a_node_refuses_it() -> None:
    cases = [(name, value) for name, values in VALUES.items() for value in values]
    bodies = [
        pod({"gpushare.io/memory": "4GiB", f"gpushare.io/{name}": value}) for name, value in cases
    ]
    for case, body, found in zip(cases, bodies, all_refused(bodies, "strict"), strict=True):
        of_node = list(on_node(body, PLAIN))
        assert bool(found) == bool(of_node), (case, found, of_node)


#: Annotations, and what of the node's message the policy's has not.
MESSAGES: tuple[tuple[dict[str, str], str], ...] = (
    ({"memory": "4Q"}, ""),
    ({"remote": "Lab"}, ""),
    ({"memory": "4"}, ""),
    ({"memory": "0"}, ""),
    ({"container.train.cores": "0"}, ""),
    ({"memory": 'a"b\\c'}, ""),
    ({"memory": "1GiB", "policy": "fixed"}, ""),
    ({"memory": "1GiB", "policy": "fixed-share"}, ""),
    ({"memory": "1GiB", "policy": "fs"}, ""),
    ({"memory": "1GiB", "oversubscribe": "swap"}, ""),
    ({"memory": "1GiB", "backend": "exclusive"}, ""),
    ({"memory": "1GiB", "memory-percent": "10"}, ""),
    ({"memory": "4GiB", "memory-limit": "2GiB"}, ""),
    ({"devices": "0,,1"}, ""),
    ({"devices": "0,1", "count": "3"}, ""),
    ({"allow": "A100,A100"}, ""),
    ({"compute-capability": "8.0"}, ""),
    ({"memory": "1GiB", "compute-capability": ">=8.0,,<9.0"}, ""),
    ({"cores": "30"}, ""),
    ({"placement": "spread"}, ""),
    ({"container.train": "4GiB"}, ""),
    ({"memroy": "4GiB"}, "Did you mean"),  # CEL cannot find the nearest of several texts
    ({"memory": "4G"}, "bytes, or"),  # nor does a policy calculate both readings
    ({"memory": "0.1GiB"}, "102MiB"),
)


def test_messages_are_those_of_the_node() -> None:
    bodies = [
        pod({f"gpushare.io/{name}": value for name, value in annotations.items()})
        for annotations, _ in MESSAGES
    ]
    for (_, differs), body, messages in zip(
        MESSAGES, bodies, all_refused(bodies, "strict"), strict=True
    ):
        (of_node,) = on_node(body, PLAIN)
        if not differs:
            assert of_node in messages
        else:
            assert differs in of_node
            assert differs not in messages[0]
            assert messages[0].split(": ")[0] == of_node.split(": ")[0]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (
            {"gpushare.io/container.trains.memory": "4GiB"},
            (
                "annotation gpushare.io/container.trains.memory=4GiB: for container trains, which "
                "this pod does not have. Its containers are train, side."
            ),
        ),
        (
            {"gpushare.io/memory": "4GiB"},
            (
                "pod annotation gpushare.io/memory=4GiB: names no container, and applies to each "
                "of train, side. Write gpushare.io/container.train.memory."
            ),
        ),
        (
            {
                "gpushare.io/container.train.memory": "4GiB",
                "gpushare.io/container.side.memory": "4GiB",
                "gpushare.io/cores": "30",
            },
            (
                "pod annotation gpushare.io/cores=30: names no container, but other annotations "
                "name train, side. Write gpushare.io/container.train.cores."
            ),
        ),
    ],
)
def test_an_annotation_must_say_for_which_container_it_is(
    annotations: dict[str, str], expected: str
) -> None:
    assert refused(pod(annotations, ("train", "side")), "lenient") == [expected]


def limited(body: dict[str, Any], limits: dict[str, str]) -> dict[str, Any]:
    body["spec"]["containers"][0]["resources"] = {"limits": limits}
    return body


@pytest.mark.parametrize(
    ("runtime_class", "mode", "limits"),
    [
        ("gpushare-plugin", "plugin", {"gpushare.io/memory-gib": "4"}),
        ("gpushare-dra", "dra", {}),
    ],
)
def test_a_request_by_annotation_is_refused_where_the_scheduler_allocates(
    runtime_class: str, mode: NodeMode, limits: dict[str, str]
) -> None:
    name = "gpushare.io/container.train.memory"
    body = pod({name: "4GiB"}, runtimeClassName=runtime_class)
    expected = str(of_another_mode(f"annotation {name}", "4GiB", "annotations", mode))
    assert refused(body, "lenient") == [expected]
    granted = limited(body, limits)
    granted["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    assert refused(granted, "lenient") == []


def test_of_several_messages_the_first_is_the_same_each_time() -> None:
    wrong = pod({f"gpushare.io/{key}": "x" for key in ("unknown-a", "unknown-b", "unknown-c")})
    messages = {one for each in all_refused([wrong] * 20, "lenient") for one in each}
    (message,) = messages
    assert message.startswith("pod annotation gpushare.io/unknown-a=x: unknown key.")
    assert message.endswith(" And 2 more.")


WRONG = {"metadata": {"annotations": {"gpushare.io/memory": "4Q"}}}


TEMPLATE = WRONG | {"spec": {"containers": [{"name": "c"}]}}


WORKLOADS: list[dict[str, Any]] = [
    *(
        {"apiVersion": "apps/v1", "kind": kind, "spec": {"template": TEMPLATE}}
        for kind in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
    ),
    {"apiVersion": "v1", "kind": "ReplicationController", "spec": {"template": TEMPLATE}},
    {"apiVersion": "v1", "kind": "PodTemplate", "template": TEMPLATE},
    {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": TEMPLATE}},
    {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}},
    },
]


def test_a_workload_is_refused_for_its_template_unless_that_stays_as_it_was() -> None:
    expected = ["pod annotation gpushare.io/memory=4Q: not a size. Write e.g. 4GiB."]
    right = [json.loads(json.dumps(one).replace("4Q", "4GiB")) for one in WORKLOADS]
    requests = [
        *((Request(one), expected) for one in WORKLOADS),
        *((Request(one, "UPDATE", one), []) for one in WORKLOADS),
        *(
            (Request(one, "UPDATE", old), expected)
            for one, old in zip(WORKLOADS, right, strict=True)
        ),
    ]
    found = decide([POLICIES["strict"]], [request for request, _ in requests])
    for (request, messages), one in zip(requests, found, strict=True):
        assert one.messages == messages, request


def test_of_a_pod_that_exists_only_what_changes_is_judged() -> None:
    bad, size = {"memory": "4Q"}, {"memory": "4GiB"}
    below = {"memory-limit": "2GiB"}
    updates: tuple[tuple[dict[str, str], dict[str, str], str], ...] = (
        (bad, bad, ""),  # a label, a finalizer
        (bad, {}, ""),
        (bad, bad | {"idle-after": "30m"}, ""),
        ({}, bad, "memory=4Q: not a size"),
        (size, bad, "memory=4Q: not a size"),
        (size, size | {"idle-after": "soon"}, "idle-after=soon"),
        (size, size | {"memroy": "4GiB"}, "memroy=4GiB: unknown key"),
        (size, size | {"policy": "best-effort"}, ""),  # complete with what was there
        (size, size | below, "memory-limit=2GiB: below memory 4GiB"),
        (size | below, size | below, ""),
    )
    made = [
        [pod({f"gpushare.io/{key}": value for key, value in keys.items()}) for keys in (old, new)]
        for old, new, _ in updates
    ]
    for _, new in made:
        new["metadata"]["labels"] = {"new": "1"}
    found = decide([POLICIES["strict"]], [Request(new, "UPDATE", old) for old, new in made])
    for (*change, expected), one in zip(updates, found, strict=True):
        assert len(one.messages) == bool(expected), (change, one.messages)
        assert expected in "".join(one.messages)


def test_what_cannot_be_evaluated_is_admitted() -> None:
    made = policy("lenient")
    assert made["spec"]["failurePolicy"] == "Ignore"
    # 64 containers with an annotation of 40,000 bytes each cost more than an API server spends.
    names = tuple(f"c{number}" for number in range(64))
    body = pod({f"gpushare.io/container.{name}.allow": "A," * 20_000 for name in names}, names)
    (refused_then,) = decide([failing(made)], [Request(body)])
    assert "cost" in refused_then.refused
    (admitted,) = decide([made], [Request(body)])
    assert not admitted.refused


NODES: Final = {one: RequestPolicy(dialects=Dialects(mode=one)) for one in STRICTNESS}


NUMBERS: Final = (0, 1, 30, 257)


def recorded(limits: dict[str, int]) -> dict[str, str]:
    lines = ["position 0", *(f"limit {name}={number}" for name, number in limits.items())]
    return {"gpushare.io/container.train.vendor": "\n".join(lines)}


@pytest.mark.parametrize("strictness", STRICTNESS)
def test_a_limit_is_refused_only_where_a_node_refuses_it(strictness: Strictness) -> None:
    limits = [{name: number} for name in vendor_limits(strict=True).accepted for number in NUMBERS]
    bodies = [pod(recorded(one)) for one in limits]
    for one, body, found in zip(limits, bodies, all_refused(bodies, strictness), strict=True):
        assert not found or list(on_node(body, NODES[strictness])), one


def test_keys_in_other_places_may_change_what_a_limit_means() -> None:
    annotations = recorded({"nvidia.com/gpucores": 101})
    [(name, text)] = annotations.items()
    lines = ["label a=b", "annotation a=b", "env A=b", "limit a=x"]
    others = [pod({name: f"{text}\n{line}"}) for line in lines]
    first, *rest = all_refused([pod(annotations), *others], "strict")
    assert first
    assert rest == [[]] * len(lines)
