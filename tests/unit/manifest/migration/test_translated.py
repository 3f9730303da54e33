# SPDX-License-Identifier: Apache-2.0
"""Plans and the chart: its values, and the pods that its admission policy translates or leaves."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml

from gpushare.kubernetes.api.node_settings import settings_of
from gpushare.manifest import read
from gpushare.manifest.migration import MigrationMode, plans
from gpushare.quota.node_settings import ALLOWED_MODE
from tests.admission import mutate
from tests.admission.rendered import translation

from .test_migration import HERE, NAMES, dump

Object = dict[str, Any]


def pods_of(name: str) -> dict[str, Object]:
    """Return the pods of a dump as their manifests have them, by workload as plans name them."""
    found: dict[str, Object] = {}
    for item in yaml.safe_load((HERE / f"{name}.yaml").read_text())["items"]:
        metadata, spec = item["metadata"], item.get("spec", {})
        owner = f"{item['kind']} {metadata.get('namespace')}/{metadata['name']}"
        template = spec.get("template") or {"metadata": metadata, "spec": spec}
        for reference in metadata.get("ownerReferences", []):
            kind, made = reference["kind"], reference["name"]
            if kind == "ReplicaSet":
                kind, made = "Deployment", made.rpartition("-")[0]
            owner = f"{kind} {metadata['namespace']}/{made}"
        if "containers" in template["spec"]:
            named = {"name": "p", "namespace": metadata.get("namespace", "default")}
            body = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]}
            own = {key: template["metadata"].get(key, {}) for key in ("annotations", "labels")}
            if item["kind"] != "Pod" or owner not in found:
                found[owner] = {**body, "metadata": {**named, **own}}
    return found


def namespace(**labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": labels}}


@pytest.mark.parametrize("mode", ["annotations", "plugin"])
@pytest.mark.parametrize("name", NAMES)
def test_a_plan_says_which_pods_the_policy_leaves_as_they_are(
    name: str, mode: MigrationMode
) -> None:
    (plan,) = plans([dump(name)], mode)
    is_whole = plan.values["admission"].get("nvidia", False)
    policy = translation(mode, nvidia=is_whole)
    pods = pods_of(name)
    for one in plan.inventory.workloads:
        pod = pods[one.owner]
        if one.problems:
            continue  # gpushared refuses it with the reason, if the policy does not leave it
        is_left = mutate(policy, pod) == pod
        assert is_left == bool(one.stays(mode)), f"{one.owner}: {one.stays(mode) or 'translated'}"


def selects(labels: dict[str, str], selector: Object) -> bool:
    """Whether a selector with the operator NotIn alone selects these labels."""
    for one in selector["matchExpressions"]:
        assert one["operator"] == "NotIn"
        if labels.get(one["key"]) in one["values"]:
            return False
    return True


def after(labels: dict[str, str], commands: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the labels of a namespace after each `kubectl label namespace NAMESPACE ...`."""
    states = []
    for command in commands:
        words = shlex.split(command)
        if words[:4] == ["kubectl", "label", "namespace", "NAMESPACE"]:
            key, is_set, value = words[4].partition("=")
            labels = {**labels, key: value}
            if not is_set:
                labels = {k: v for k, v in labels.items() if k not in {key, key.rstrip("-")}}
            states.append(labels)
    return states


def test_in_no_state_of_a_namespace_do_both_rewrite_a_pod() -> None:
    (plan,) = plans([dump("hami")])
    webhook = next(
        hook["namespaceSelector"]
        for item in yaml.safe_load((HERE / "hami.yaml").read_text())["items"]
        for hook in item.get("webhooks", [])
    )
    pod = pods_of("hami")["Deployment ai/llm"]

    def served_by(labels: dict[str, str]) -> list[str]:
        translated = mutate(translation(plan.mode), pod, namespace=namespace(**labels)) != pod
        return ["HAMi"] * selects(labels, webhook) + ["gpushare"] * translated

    first = {"gpushare.io/translate": "false"}
    move = next(step for step in plan.steps if step.title == "Move a namespace")
    forth = after(first, move.commands)
    back = after(forth[-1], move.back)
    assert served_by(first) == ["HAMi"]
    assert [served_by(one) for one in forth] == [[], ["gpushare"]]
    assert [served_by(one) for one in back] == [[], ["HAMi"]]


def test_a_pod_of_hami_that_was_moved_is_no_workload_of_hami_any_more() -> None:
    """The plan asks for this command, to see when all pods have moved."""
    (plan,) = plans([dump("hami")])
    pod = pods_of("hami")["Deployment ai/llm"]
    moved = mutate(translation(plan.mode), pod)
    assert plans([read("dump.yaml", yaml.safe_dump(moved))]) == []
    assert plans([read("dump.yaml", yaml.safe_dump(pod))]) != []


def test_a_new_node_of_ack_accepts_shares() -> None:
    (plan,) = plans([dump("cgpu")])
    step = next(one for one in plan.steps if one.title.startswith("Add a node"))
    labels = {"ack.node.gpu.schedule": "default"}
    node = {"metadata": {"labels": labels}}
    assert settings_of(node).settings[ALLOWED_MODE]["value"] == "exclusive"
    for command in step.commands:
        key, _, value = shlex.split(command)[-1].partition("=")
        labels[key] = value
    wanted = settings_of(node)
    assert (wanted.settings[ALLOWED_MODE]["value"], wanted.problems) == ("any", ())
