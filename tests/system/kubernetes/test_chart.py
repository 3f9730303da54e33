# SPDX-License-Identifier: Apache-2.0
"""The helm chart: valid with all values in every Kubernetes, with the least rights that suffice."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from packages import chart
from packages.workspace import Workspace

from gpushare import settings
from gpushare.kubernetes.api.labels import OPERATOR_LABEL
from gpushare.protocol.kubernetes import MODES
from tests.stack.program import find
from tools import admission
from tools.check.command import ROOT

from . import schemas

pytestmark = pytest.mark.needs("helm")

SOURCE = ROOT / chart.SOURCE
NAMESPACE = "gpushare-system"
NEWEST = "1.37"
#: What a template leaves out if it is empty, or repeats as it is.
COPIED: tuple[dict[str, Any], ...] = (
    {},
    {
        "imagePullSecrets": [],
        "nodeSelector": {},
        "tolerations": [],
        "priorityClassName": "",
        "resources": {},
        "configuration": {},
        "admission": {"translate": "none", "validate": "none"},
    },
    {
        "image": {
            "repository": "registry.example:5000/gpu/gpushare",
            "tag": "2",
            "pullPolicy": "Always",
        },
        "imagePullSecrets": [{"name": "credentials"}],
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "tolerations": [{"operator": "Exists"}],
        "kubeletDir": "/var/lib/k0s/kubelet",
        "simulate": {"profile": "t4", "cards": 3},
        "viewRole": {"enabled": True, "subjects": [{"kind": "Group", "name": "ops"}]},
        "resources": {"limits": {"memory": "1Gi"}},
        "configuration": {
            "kubernetes": {"node": "n"},
            "max_per_request": {"memory": "75GiB"},
            "driver": {},
        },
        "admission": {
            "translate": "v1beta1",
            "nvidia": True,
            "validate": "strict",
            "validationActions": ["Warn", "Audit"],
        },
    },
)
COMBINATIONS = [
    {
        "mode": mode,
        "state": state,
        "engine": {"name": engine, "restart": restart},
        "serviceAccount": {"create": create, "name": "gpushare-node"},
        **copied,
    }
    for (mode, state, engine, restart), (create, copied) in zip(
        itertools.product(MODES, ("present", "absent"), ("containerd", "crio"), (True, False)),
        itertools.cycle(itertools.product((True, False), COPIED)),
        strict=False,
    )
]


def helm(*words: str, values: Any = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find("helm"), *words, "--values=-"],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def _whole() -> TemporaryDirectory[str]:
    folder = TemporaryDirectory(prefix="gpushare-chart-")  # goes with this process
    chart.unpack(Workspace.of(ROOT, Path(folder.name)), Path(folder.name, chart.NAME))
    return folder


def whole_chart() -> Path:
    """Return a folder with all that the package of the chart contains."""
    return Path(_whole().name, chart.NAME)


def rendered(
    values: Any = None, version: str = NEWEST, source: Path | None = None
) -> list[dict[str, Any]]:
    """Return the objects that `helm install` creates."""
    folder = str(source or whole_chart())
    words = ("template", "gpushare", folder, f"--kube-version={version}")
    done = helm(*words, f"--namespace={NAMESPACE}", values=values)
    assert done.returncode == 0, done.stderr
    return [body for body in yaml.safe_load_all(done.stdout) if body]


def of(kind: str, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in objects if one["kind"] == kind]


def pod(values: Any = None) -> dict[str, Any]:
    (found,) = of("DaemonSet", rendered(values))
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def test_every_object_is_valid_with_combinations_of_all_values() -> None:
    for values in COMBINATIONS:
        for body in rendered(values):
            schemas.check(body)


@pytest.mark.parametrize("version", schemas.VERSIONS)
@pytest.mark.parametrize("mode", MODES)
def test_each_version_gets_the_modes_that_it_has(version: str, mode: str) -> None:
    if mode == "dra" and version not in schemas.DRA_VERSIONS:
        words = ("template", "gpushare", str(SOURCE), f"--kube-version={version}")
        refused = helm(*words, values={"mode": mode})
        assert refused.returncode != 0
        assert f"mode: dra: requires Kubernetes 1.34 or newer, and this is v{version}" in (
            refused.stderr
        )
        return
    objects = rendered({"mode": mode}, version)
    assert len(of("DeviceClass", objects)) == (mode == "dra")
    assert len(of("RuntimeClass", objects)) == len(MODES)
    has_policies = version in schemas.MUTATING_VERSIONS["v1"] and mode != "dra"
    for kind in ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"):
        assert len(of(kind, objects)) == has_policies


def test_pods_are_translated_to_claims_from_kubernetes_1_36_on_if_that_is_wanted() -> None:
    wanted: dict[str, Any] = {"mode": "dra", "admission": {"templates": True}}
    for version in schemas.DRA_VERSIONS:
        objects = rendered(wanted, version)
        kinds = ("MutatingAdmissionPolicy", "Deployment")
        is_there = version in schemas.MUTATING_VERSIONS["v1"]
        assert [len(of(kind, objects)) for kind in kinds] == [is_there, is_there], version
        for one in objects:
            schemas.check(one, [version])
    assert not of("Deployment", rendered({**wanted, "state": "absent"}, "1.36"))
    assert not of("Deployment", rendered({**wanted, "mode": "plugin"}, "1.36"))


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"mode": "mig"}, "mode"),
        ({"modus": "dra"}, "modus"),
        ({"engine": {"name": "docker"}}, "engine/name"),
        ({"image": {"tag": "a b"}}, "image/tag"),
        ({"configuration": {"kubernetes": {"mode": "dra"}}}, "configuration/kubernetes/mode"),
        ({"configuration": {"max_tenant": 3}}, "max_tenant"),
        ({"configuration": {"max_per_request": {"cores": "many"}}}, "max_per_request/cores"),
        ({"kubeletDir": "kubelet"}, "kubeletDir"),
        ({"admission": {"translate": "v2"}}, "admission/translate"),
        ({"admission": {"validationActions": ["Deny", "Warn"]}}, "admission/validationActions"),
        ({"metrics": {"address": "127.0.0.1"}}, "metrics/address"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values: Any, place: str) -> None:
    refused = helm("template", str(whole_chart()), values=values)
    assert refused.returncode != 0
    assert place in refused.stderr


def test_an_upgrade_leaves_no_node_without_a_driver_of_claims() -> None:
    """In the other modes, a second instance would displace the first one's device plugin."""
    for mode in MODES:
        (found,) = of("DaemonSet", rendered({"mode": mode}))
        expected = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}} if mode == "dra" else {}
        assert found["spec"].get("updateStrategy", {}) == expected


def test_a_pod_is_ready_once_the_kubelet_has_registered_it() -> None:
    (container,) = pod()["containers"]
    (file,) = (word for word in container["args"] if word.startswith("--ready-file="))
    path = file.partition("=")[2]
    assert container["startupProbe"]["exec"]["command"] == ["test", "-e", path]
    assert str(Path(path).parent) in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_pod_leaves_a_node_whose_driver_the_gpu_operator_unloads() -> None:
    affinity = pod()["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    [[value], [absent]] = [term["matchExpressions"] for term in terms]
    assert value == {"key": OPERATOR_LABEL, "operator": "In", "values": ["true"]}
    assert absent == {"key": OPERATOR_LABEL, "operator": "DoesNotExist"}
    assert "affinity" not in pod({"state": "absent"})


@pytest.mark.parametrize("mode", MODES)
def test_only_containers_that_change_the_node_are_privileged(mode: str) -> None:
    containers: dict[str, Any] = {}
    for state in ("present", "absent"):
        spec = pod({"mode": mode, "state": state})
        assert spec["hostPID"] is True
        assert not {"hostNetwork", "hostIPC"} & set(spec)
        containers |= {one["name"]: one for one in spec["initContainers"] + spec["containers"]}
    for name, one in containers.items():
        context = one["securityContext"]
        if name in {"install", "remove"}:
            assert context == {"privileged": True}
        else:
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_what_asks_gpushared_has_the_folder_of_its_socket() -> None:
    for state, name in (("present", "gpushare-node"), ("absent", "leave")):
        spec = pod({"state": state})
        (one,) = (one for one in spec["initContainers"] + spec["containers"] if one["name"] == name)
        (mount,) = (one for one in one["volumeMounts"] if one["mountPath"] == "/run/gpushare")
        (volume,) = (one for one in spec["volumes"] if one["name"] == mount["name"])
        assert volume["hostPath"]["path"] == "/run/gpushare"


def test_the_configuration_is_one_that_the_node_accepts_and_knows_by_its_first_line() -> None:
    values = {"mode": "dra", "configuration": {"max_tenants": 3, "kubernetes": {"node": "n"}}}
    objects = rendered(values)
    (found,) = of("ConfigMap", objects)
    text = found["data"]["gpushare.yaml"]
    loaded = yaml.safe_load(text)
    assert loaded == {"max_tenants": 3, "kubernetes": {"node": "n", "mode": "dra"}}
    settings.checked(text, Path("gpushare.yaml"))
    entry = (ROOT / "packaging/image/gpushare-image").read_text()
    mark = re.search(r'(?m)^MARK="(.*)"$', entry)
    assert mark
    assert text.splitlines()[0] == mark[1]


EVERYTHING: dict[str, Any] = {
    "admission": {"validate": "strict", "nvidia": True},
    "metrics": {
        "enabled": True,
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "viewRole": {"enabled": True},
}


def policies_of(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the policies with `Fail`, and as if the chart's namespace were not exempt.

    The policy of another release may be there, too.
    """
    found = [one for one in objects if one["kind"].endswith("AdmissionPolicy")]
    for one in found:
        constraints = one["spec"]["matchConstraints"]
        if namespaces := constraints.pop("namespaceSelector", None):
            (exempt,) = (at for at in namespaces["matchExpressions"] if NAMESPACE in at["values"])
            assert (exempt["key"], exempt["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
    return [admission.failing(one) for one in found]


@pytest.mark.needs("admission")
def test_the_policies_leave_what_the_chart_creates_as_it_is() -> None:
    """Those of each combination of values, applied to all objects of all combinations."""
    bodies: dict[str, Any] = {}
    policies: dict[str, Any] = {}
    for values in [*COMBINATIONS, *({"mode": mode, **EVERYTHING} for mode in MODES)]:
        objects = rendered(values)
        templates = [one["spec"]["template"] for one in of("DaemonSet", objects)]
        pods = [{"apiVersion": "v1", "kind": "Pod", **one} for one in templates]
        bodies |= {json.dumps(one): one for one in objects + pods}
        policies |= {json.dumps(one["spec"]): one for one in policies_of(objects)}
    named = [
        {**one, "metadata": {"name": f"{one['metadata']['name']}-{number}"}}
        for number, one in enumerate(policies.values())
    ]
    assert {one["kind"] for one in named} == {
        "MutatingAdmissionPolicy",
        "ValidatingAdmissionPolicy",
    }
    decisions = admission.decide(named, map(admission.Request, bodies.values()))
    for body, one in zip(bodies.values(), decisions, strict=True):
        assert not one.refused, body
        assert not one.changed, body


@pytest.mark.needs("admission")
@pytest.mark.parametrize("mode", MODES)
def test_the_policies_use_functions_of_the_oldest_version_that_has_them(mode: str) -> None:
    policies = policies_of(rendered({"mode": mode, **EVERYTHING}))
    claiming = policies_of(rendered({"mode": mode, "admission": {"templates": True}}, "1.36"))
    admission.decide(claiming, [], since="1.36")
    for kind, since in (("Mutating", "1.34"), ("Validating", schemas.VERSIONS[0])):
        admission.decide([one for one in policies if one["kind"].startswith(kind)], [], since=since)
