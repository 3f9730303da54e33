# SPDX-License-Identifier: Apache-2.0
"""Mode dra: the policy names a template of claims for each vendor's request, or leaves the pod."""

from __future__ import annotations

import json
import random
from typing import Final

import pytest
from packages.vendor_keys import vendor_keys

from gpushare.manifest import read
from gpushare.manifest.convert import convert
from gpushare.manifest.convert.conversion import CannotConvert
from gpushare.manifest.convert.targets import TARGETS
from tests.corpus.cases import CASES
from tests.corpus.claims import LEFT_OUT, Amounts, claimed, meant, others
from tests.corpus.pods import Object, containers_of, converted, on_node, pods, pods_of
from tools.admission import mutated

from .rendered import deployment, translation, warned
from .test_translation import TYPICAL, container, pod_of

pytestmark = pytest.mark.needs("admission")

#: What stays as it is in mode dra.
LEFT: Final = {
    "baidu/cgpu",
    "kai/containers",
    "kubeshare/sharepod",
    "nvidia/limits",
    "nvidia/mps-core",
    "orionx/pod",
    "volcengine/multiple",
}


def test_what_the_corpus_requests_is_what_the_templates_say() -> None:
    translate, left = translation("dra", nvidia=True), set()
    in_cluster = [case for case in CASES if pods(case)]
    before = [pod for case in in_cluster for pod in pods(case)]
    once = mutated(translate, before)
    assert mutated(translate, once) == once
    made = iter(once)
    for case in in_cluster:
        after = [next(made) for _ in pods(case)]
        expected = converted(case) or []
        if after == pods(case):
            left |= {str(case)} if any(map(meant, on_node(expected, "annotations"))) else set()
            continue
        meanings = on_node(expected, "annotations")
        assert [one for pod in after for one in claimed(pod)] == list(map(meant, meanings)), case
        noted = any(LEFT_OUT in pod["metadata"].get("annotations", {}) for pod in after)
        assert noted or not any(map(others, meanings)), case
    assert left == LEFT


VALUES: Final = ("0", "1", "2", "5", "8", "9", "20", "30", "50", "100", "150", "200", "300", "1Gi")


def of_one_vendor(chosen: random.Random) -> Object:
    """Return a pod with a few limits of one vendor, and sometimes one of another."""
    of = vendor_keys()["claims"]["of"]
    vendor = chosen.choice(sorted(set(of.values()) - {""}))
    names = [name for name, one in of.items() if one in {vendor, ""}]
    if chosen.random() < 0.1:
        names += [*of]
    limits = {
        name: chosen.choice(VALUES) for name in chosen.sample(names, chosen.choice((1, 2, 2, 3)))
    }
    labels = {"app": "a"}
    if chosen.random() < 0.3:
        label = chosen.choice(["aliyun.com/gpu-count", "volcano.sh/gpu-num"])
        labels[label] = chosen.choice(["1", "2", "3", "x"])
    return pod_of(container(limits), metadata={"name": "p", "labels": labels})


def requests_of(pod: Object) -> tuple[Object, Object]:
    return pod["spec"]["containers"][0]["resources"]["limits"], pod["metadata"]["labels"]


def by_convert(pod: Object) -> list[Amounts] | str:
    """Return what `gpushare convert` makes of a pod, or why it refuses it."""
    try:
        text = convert(read("p.yaml", json.dumps(pod)), TARGETS["gpushare"]).text
    except CannotConvert as refused:
        return str(refused)
    return list(map(meant, on_node(pods_of("p.yaml", text), "annotations")))


def test_what_nobody_wrote_is_translated_as_convert_does_or_left() -> None:
    chosen = random.Random(41)
    before = [of_one_vendor(chosen) for _ in range(1500)]
    after = mutated(translation("dra", nvidia=True), before)
    translated = [(pod, one) for pod, one in zip(before, after, strict=True) if one != pod]
    wrong = [
        (requests_of(pod), one["spec"]["resourceClaims"])
        for pod, one in translated
        if claimed(one) != by_convert(pod)
    ]
    assert not wrong, wrong
    assert len(translated) > 200
    said = {
        claim["resourceClaimTemplateName"]
        for _, one in translated
        for claim in one["spec"]["resourceClaims"]
    }
    assert len(said) > 50


def only(pod: Object) -> Object:
    (made,) = mutated(translation("dra"), [pod])
    return made


def test_an_init_container_uses_the_claim_of_an_equal_container() -> None:
    """Claims are the pod's as long as it lives: one that differs adds up, and so does a sidecar."""
    small = {**TYPICAL, "nvidia.com/gpumem": "1024"}
    made = only(
        pod_of(
            container(TYPICAL),
            container(small, "small"),
            initContainers=[
                container(TYPICAL, "equal"),
                container({**TYPICAL, "nvidia.com/gpumem": "64"}, "other"),
                container(small, "sidecar", restartPolicy="Always"),
            ],
        )
    )
    claims = [one["resources"]["claims"][0]["name"] for one in containers_of(made)]
    assert claims == ["gpushare-3", "gpushare-1", "gpushare-2", "gpushare-3", "gpushare-4"]
    assert len(made["spec"]["resourceClaims"]) == 4
    assert made["metadata"]["labels"]["gpushare.io/templates"] == "wanted"
    assert made["spec"]["runtimeClassName"] == "gpushare-dra"


def test_a_pod_stays_whole_or_as_it_is() -> None:
    left = [
        pod_of(container(TYPICAL), container({"virtaitech.com/gpu": "1"}, "second")),
        pod_of(container(TYPICAL), nodeName="n"),
        pod_of(container(TYPICAL), runtimeClassName="kata"),
        pod_of(*(container(TYPICAL, f"c{number}") for number in range(129))),
    ]
    assert mutated(translation("dra"), left) == left
    most = only(pod_of(*(container(TYPICAL, f"c{number}") for number in range(128))))
    assert len(most["spec"]["resourceClaims"]) == 128


def test_claims_that_the_pod_has_stay() -> None:
    own = {"name": "own", "resourceClaimName": "mine"}
    made = only(pod_of(container(TYPICAL), resourceClaims=[own]))
    assert [one["name"] for one in made["spec"]["resourceClaims"]] == ["own", "gpushare-0"]
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1"}


def warnings(*objects: Object) -> list[str]:
    return warned("dra", "claimadmissionpolicy.yaml", "gpushare-left-out", objects)


def test_what_no_name_says_is_warned_of() -> None:
    limits = {**TYPICAL, "nvidia.com/priority": "1"}
    typed = {"annotations": {"nvidia.com/use-gputype": "A100"}, "labels": {"app": "a"}}
    pod = pod_of(container(limits), metadata={"name": "p", "namespace": "default", **typed})
    template = {"metadata": typed, "spec": pod_of(container(limits))["spec"]}
    for said in warnings(pod, deployment(template)):
        assert said.startswith("not applied in mode dra: ")
        assert "nvidia.com/priority" in said
        assert "nvidia.com/use-gputype" in said
    assert not any(warnings(pod_of(container(TYPICAL)), pod_of(container())))
