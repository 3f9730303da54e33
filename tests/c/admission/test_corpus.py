# SPDX-License-Identifier: Apache-2.0
"""Each manifest of the corpus, through the policies and the admission plugins of Kubernetes."""

from __future__ import annotations

import copy
from itertools import chain

import pytest
import yaml
from packages.validating_policy import STRICTNESS, Strictness, policy

from gpushare.protocol.kubernetes import NodeMode
from tests.corpus.cases import CASES
from tests.corpus.expected import admitted
from tests.corpus.pods import Object, allocated_like, on_node, pods
from tests.corpus.pods import converted as converted_pods
from tools.admission import Request, decide, failing, mutated

from .rendered import translation

pytestmark = pytest.mark.needs("admission")

IN_CLUSTER = [case for case in CASES if pods(case)]
PODS = [pod for case in IN_CLUSTER for pod in pods(case)]
#: What the policies leave as it is with admission.nvidia: the plugin counts memory of one card.
LEFT: dict[NodeMode, set[str]] = {
    "annotations": set(),
    "plugin": {
        "alibaba/two-cards",
        "baidu/cgpu",
        "gke/time-sharing",
        "hami/percentage",
        "hami/whole-cards",
        "kai/containers",
        "kai/fraction",
        "kai/sm-sharing",
        "koordinator/ratio",
        "koordinator/ray",
        "kubeshare/sharepod",
        "nvidia/kserve",
        "nvidia/limits",
        "nvidia/mps-core",
        "orionx/pod",
        "tencent/qgpu-whole",
        "volcengine/multiple",
    },
}


def test_the_policies_make_of_each_manifest_what_convert_does() -> None:
    """After a change that is meant, `python -m tests.corpus update` writes it."""
    assert admitted(CASES) == {str(case): case.expected["admitted"] for case in CASES}


@pytest.mark.parametrize("mode", LEFT)
def test_with_admission_nvidia_limits_of_its_plugin_are_translated(mode: NodeMode) -> None:
    translate, left = translation(mode, nvidia=True), set()
    all_once = mutated(translate, PODS)
    assert mutated(translate, all_once) == all_once
    translated = iter(all_once)
    for case in IN_CLUSTER:
        once = [next(translated) for _ in pods(case)]
        expected = converted_pods(case) or pods(case)
        if once == pods(case) != expected:
            left.add(str(case))
        else:
            wanted = allocated_like(expected, once)
            assert on_node(once, mode) == on_node(wanted, mode), case
    assert left == LEFT[mode]


def test_the_lines_of_a_record_mean_the_same_in_any_order() -> None:
    """An API server has the keys of a map in another order each time."""
    for pod in mutated(translation(nvidia=True), PODS):
        reversed_there = copy.deepcopy(pod)
        annotations = reversed_there["metadata"].get("annotations", {})
        for name, text in annotations.items():
            if name.endswith(".vendor"):
                annotations[name] = "\n".join(reversed(text.splitlines()))
        once, other = (on_node([one], "annotations") for one in (pod, reversed_there))
        assert once == other


@pytest.mark.parametrize("strictness", STRICTNESS)
def test_no_manifest_is_refused_when_it_is_applied(strictness: Strictness) -> None:
    """Nor is what it is converted to, nor what its pods are translated to."""
    paths = chain.from_iterable((case.path, case.golden("gpushare")) for case in CASES)
    bodies: list[Object] = [
        one
        for path in paths
        if path.exists()
        for body in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        for one in (body or {}).get("items", [body])
        if one and {"apiVersion", "kind"} <= one.keys()
    ]
    for mode in LEFT if strictness == "lenient" else ():
        bodies += mutated(translation(mode, nvidia=True), PODS)
    decisions = decide([failing(policy(strictness))], map(Request, bodies))
    refused = [
        (body, one.messages) for body, one in zip(bodies, decisions, strict=True) if one.refused
    ]
    assert refused == []
