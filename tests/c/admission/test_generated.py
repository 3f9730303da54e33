# SPDX-License-Identifier: Apache-2.0
"""Pods that nobody wrote: each expression has a value, and a node agrees with the policies."""

from __future__ import annotations

import json
import random

import pytest
from packages.validating_policy import STRICTNESS, Strictness, policy
from packages.vendor_keys import vendor_keys

from gpushare.manifest import read
from gpushare.manifest.request import request_on_node
from gpushare.quota.keys import KEYS
from gpushare.quota.request_policy import Dialects, RequestPolicy
from tests.corpus.pods import Object
from tools.admission import Request, decide, failing, mutated

from .rendered import translation

pytestmark = pytest.mark.needs("admission")

_VENDORS = vendor_keys()
COUNT = 400
LIMITS = [*_VENDORS["limit"]["keys"], "cpu", "rdma/hca"]
ENV = [*_VENDORS["env"]["keys"], "PATH"]
SCOPES = ["", "container.main.", "container.side.", "container.none.", "container."]
ANNOTATIONS = [f"gpushare.io/{scope}{key}" for scope in SCOPES for key in (*KEYS, "vendor", "x")]
OTHERS = [*_VENDORS["annotation"]["keys"], "a/b"]
#: Of the limits here, an API server takes whole numbers only.
AMOUNTS = ["0", "1", "2", "10", "30", "100", "4Ki"]
TEXTS = ["", "0", "1", "30", "100", "4GiB", "1.5GiB", "4Q", "0,1", "auto", "x=y", "position 0"]


def _some(chosen: random.Random, names: list[str], texts: list[str]) -> Object:
    return {
        chosen.choice(names): chosen.choice(texts) for _ in range(chosen.choice([0, 0, 1, 2, 4]))
    }


def _container(chosen: random.Random, name: str) -> Object:
    env = [{"name": key, "value": text} for key, text in _some(chosen, ENV, TEXTS).items()]
    limits = _some(chosen, LIMITS, AMOUNTS)
    return {"name": name, "image": "i", "resources": {"limits": limits}, "env": env}


def generated(annotations: list[str]) -> list[Object]:
    """Return the same pods in every run."""
    chosen, pods = random.Random(20), []
    for _ in range(COUNT):
        spec = {"containers": [_container(chosen, "main")]}
        if chosen.random() < 0.5:
            side = _container(chosen, "side")
            if chosen.random() < 0.5:
                spec["containers"].append(side)
            else:
                spec["initContainers"] = [{**side, "restartPolicy": "Always"}]
        metadata = {
            "name": "p",
            "namespace": "default",
            "labels": _some(chosen, [*_VENDORS["label"]["keys"], "app"], TEXTS[:5]),
            "annotations": _some(chosen, annotations, TEXTS),
        }
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return pods


@pytest.mark.parametrize("mode", ["annotations", "plugin", "dra"])
def test_a_pod_is_translated_once(mode: str) -> None:
    before = generated(OTHERS if mode == "dra" else ANNOTATIONS + OTHERS)
    once = mutated(translation(mode, nvidia=True), before)
    assert mutated(translation(mode, nvidia=True), once) == once
    assert sum(one != pod for one, pod in zip(once, before, strict=True)) > COUNT / 10


@pytest.mark.parametrize("strictness", STRICTNESS)
def test_each_expression_of_the_validation_has_a_value(strictness: Strictness) -> None:
    pods = generated(ANNOTATIONS + OTHERS)
    for pod, one in zip(
        pods, decide([failing(policy(strictness))], map(Request, pods)), strict=True
    ):
        assert "resulted in error" not in one.refused, (pod, one.refused)


def test_what_is_refused_is_refused_by_a_node() -> None:
    """But for annotations of a container that the pod does not have, which a node ignores."""
    terms = RequestPolicy(dialects=Dialects(mode="lenient"))
    own = [name for name in ANNOTATIONS if ".none." not in name]
    # Those with both containers that the annotations name.
    pods = [pod for pod in generated(own) if "side" in json.dumps(pod["spec"])]
    refused = 0
    for pod, one in zip(
        pods, decide([failing(policy("lenient"))], map(Request, pods)), strict=True
    ):
        file = read("f", json.dumps(pod))
        found = [request_on_node(each, file, terms_of=lambda _: terms) for each in file.containers]
        assert not one.messages or any(each.refused for each in found), (pod, one.messages)
        refused += bool(one.messages)
    assert refused > len(pods) / 10
