# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a manifest, line and fix; containers whose share the scheduler allocates."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gpushare.manifest import read
from gpushare.manifest.check import check
from gpushare.manifest.model import ERROR, INFO, ManifestFinding

from .test_formats import pod


def findings(text: str, *, strict: bool = True) -> list[ManifestFinding]:
    return list(check(read("f", textwrap.dedent(text)), strict=strict).findings)


def told(text: str, level: str = ERROR, *, strict: bool = True) -> list[str]:
    """Return the lines of a level, without the file, as a user reads them."""
    found = findings(text, strict=strict)
    return [f"{one.line}:{one.column}: {one}" for one in found if one.level == level]


def annotated(annotations: str, containers: str = "[{name: train, image: i}]") -> str:
    return (
        f"kind: Pod\nmetadata:\n  annotations: {{{annotations}}}\n"
        f"spec: {{runtimeClassName: gpushare, containers: {containers}}}\n"
    )


def test_a_label_of_a_node_that_gpushare_does_not_know_is_found() -> None:
    (line,) = told("kind: Node\napiVersion: v1\nmetadata: {labels: {gpushare.io/wanted-x: a}}")
    assert line.startswith("3:43: node label gpushare.io/wanted-x=a: unknown label. The labels are")


TWO = "[{name: train, image: i}, {name: side, image: i}]"


IN_ANNOTATIONS = """\
gpushare.io/memory: 4Q => 3:37: pod annotation gpushare.io/memory=4Q: not a size. Write e.g. 4GiB.
gpushare.io/memory: 4GiB, gpushare.io/cores: 30 => 3:62: annotation gpushare.io/cores=30: a number,
    but must be text. Write "30".
gpu-share.io/memory: 4GiB => 3:17: annotation gpu-share.io/memory=4GiB: not a key of gpushare. Did
    you mean gpushare.io/memory?
a.b/c: true => 3:24: annotation a.b/c=true: true or false to YAML, but must be text. Write "true".
a.b/c: {d: e} => 3:24: annotation a.b/c: a mapping, but must be text. Write text.
gpushare.io/container.trains.memory: 4GiB => 3:17: annotation
    gpushare.io/container.trains.memory=4GiB: for container trains, which this pod does not have.
    Did you mean gpushare.io/container.train.memory?
gpushare.io/container.zz.memory: 4GiB => 3:17: annotation gpushare.io/container.zz.memory=4GiB: for
    container zz, which this pod does not have. Its containers are train.
gpushare.io/container.train.memroy: 4GiB => 3:53: annotation
    gpushare.io/container.train.memroy=4GiB: unknown key. Did you mean
    gpushare.io/container.train.memory?
nvidia.com/container.trains.gpu-memory.limit: 4Gi => 3:17: annotation
    nvidia.com/container.trains.gpu-memory.limit=4Gi: for container trains, which this pod does not
    have. Did you mean nvidia.com/container.train.gpu-memory.limit?
nvidia.com/gpumem: "3000" => 3:17: annotation nvidia.com/gpumem=3000: has no effect in annotations
    of the pod. Move it to resources.limits of the container.
gpushare.io/memory: 4GiB, gpushare.io/memory-percent: '30' => 3:37: pod annotation
    gpushare.io/memory=4GiB: conflicts with pod annotation gpushare.io/memory-percent: both set
    memory. Keep one of the two.
gpushare.io/memory: 4GiB, gpushare.io/memory: 5GiB => 3:43: gpushare.io/memory: a duplicate of the
    key in line 3. Keep one."""


@pytest.mark.parametrize("row", IN_ANNOTATIONS.replace("\n    ", " ").splitlines())
def test_errors_in_an_annotation_are_found(row: str) -> None:
    text, expected = row.split(" => ")
    assert told(annotated(text)) == [expected]


def test_an_annotation_for_no_container_is_refused_where_two_would_take_it() -> None:
    assert told(annotated("gpushare.io/memory: 4GiB", TWO)) == [
        (
            "3:17: annotation gpushare.io/memory=4GiB: names no container, and applies "
            "to each of train, side. Write gpushare.io/container.train.memory."
        )
    ]
    assert told(annotated("gpushare.io/container.train.memory: 4GiB", TWO)) == []


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("kind: Pod\nspec: {containers: [{name: a}], resources: %s}", "2:54"),
        ("kind: Pod\nresources: %s\nspec: {containers: [{name: a}]}", "2:22"),
        ("kind: Pod\nspec: {containers: [{name: a, image: i, limits: {K: 1}}]}", "2:50"),
        ("kind: Job\nspec: {template: {spec: {containers: [{name: a}]}, resources: %s}}", "2:73"),
    ],
    ids=["pod spec", "pod", "container", "pod template"],
)
def test_resources_outside_those_of_a_container_are_found(text: str, where: str) -> None:
    text = text.replace("%s", "{limits: {K: 1}}").replace("K", "nvidia.com/gpumem")
    expected = (
        f"{where}: limit nvidia.com/gpumem=1: not in resources of a container, and allocates "
        "nothing. Move it to resources.limits of the container."
    )
    assert told(text) == [expected]


def test_a_vendors_annotation_for_the_first_container_is_a_warning_where_there_are_two() -> None:
    (line,) = told(annotated("gpu-fraction: '0.5'", TWO), "warning")
    assert line == (
        "3:17: warning: annotation gpu-fraction=0.5 (KAI and Run:ai): names no container: of "
        "train, side the one that is created first gets it, and the others are refused. Add "
        "gpu-fraction-container-name: train."
    )
    named = "gpu-fraction: '0.5', gpu-fraction-container-name: side"
    assert told(annotated(named, TWO), "warning") == []
    assert told(annotated("gpu-fraction: '0.5'"), "warning") == []


def test_annotations_of_a_deployment_itself_have_no_effect() -> None:
    text = """\
        kind: Deployment
        metadata: {annotations: {gpushare.io/memory: 4GiB, nvidia.com/use-gputype: A100, a.b/c: d}}
        spec: {template: {spec: {containers: [{name: c, image: i}]}}}
    """
    rule = "belongs to the Deployment, and is not passed to its pods"
    fix = "Move it to metadata.annotations of the pod template."
    assert told(text) == [
        f"2:26: annotation gpushare.io/memory=4GiB: {rule}. {fix}",
        f"2:52: annotation nvidia.com/use-gputype=A100: {rule}. {fix}",
    ]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("requests.nvidia.com/gpumem", ""),
        ("requests.gpushare.io/memory-gib", ""),
        ("requests.example.com/chips", ""),
        ("pods", ""),
        ("nvidia.com/gpumem", "the requests of an extended resource. Write requests.nvidia.c"),
        ("limits.gpushare.io/card", "resource. Write requests.gpushare.io/card."),
        ("requests.nvidia.com/gpumemory", "no resource has this name. Did you mean requests.nvid"),
        ("requests.gpushare.io/memory-gb", "Did you mean requests.gpushare.io/memory-gib?"),
    ],
)
def test_a_quota_that_is_not_counted_is_found(name: str, problem: str) -> None:
    found = told(f"kind: ResourceQuota\nspec: {{hard: {{{name}: '4'}}}}", "warning")
    assert len(found) == bool(problem)
    assert problem in "".join(found)


def test_a_key_for_another_vendor_s_cards_is_known_and_served_elsewhere() -> None:
    (line,) = told(pod("limits: {huawei.com/Ascend910B2: 1}"), "info")
    assert "for Huawei Ascend NPUs, and no node with NVIDIA cards serves it" in line


def test_a_claim_of_nvidia_is_translated_by_its_driver() -> None:
    text = """        kind: ResourceClaimTemplate
        metadata: {name: t}
        spec: {spec: {devices: {requests: [{name: g, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
        ---
        kind: Pod
        spec:
          resourceClaims: [{name: g, resourceClaimTemplateName: t}]
          containers: [{name: c, image: i, resources: {claims: [{name: g}]}}]
    """
    (line,) = told(text, "info")
    assert "Translated by: NVIDIA's DRA driver" in line


IN_RESOURCES = """\
limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3G} => 8:66: limit nvidia.com/gpumem=3G (HAMi): not a
    whole number of MiB. Write a whole number.
limits: {nvidia.com/gpu: 2}, requests: {nvidia.com/gpu: 1} => 8:75: request nvidia.com/gpu=1:
    differs from the limit, "2". Write 2, or remove the request.
requests: {nvidia.com/gpu: 1} => 8:30: request nvidia.com/gpu=1: has no limit of the same name.
    Write it under limits; the request is optional.
limits: {tke.cloud.tencent.com/qgpu-core: 30} => 8:61: limit tke.cloud.tencent.com/qgpu-core=30
    (Tencent qGPU): requires memory. Add tke.cloud.tencent.com/qgpu-memory.
limits: {tke.cloud.tencent.com/qgpu-memroy: 5} => 8:28: limit tke.cloud.tencent.com/qgpu-memroy=5:
    not a key of Tencent qGPU. Did you mean tke.cloud.tencent.com/qgpu-memory?
limits: [nvidia.com/gpu] => 8:27: spec.containers[0].resources.limits: a list, but must be a
    mapping. Write a mapping.
limits: {nvidia.com/gpu: true} => 8:44: limit nvidia.com/gpu=true: true or false to YAML, but must
    be text or a number. Write "true".
limit: {nvidia.com/gpu: 1} => 8:19: spec.containers[0].resources.limit: unknown key. Did you mean
    limits?"""


@pytest.mark.parametrize("row", IN_RESOURCES.replace("\n    ", " ").splitlines())
def test_errors_in_resources_are_found(row: str) -> None:
    resources, expected = row.split(" => ")
    assert expected in told(pod(resources))


IN_ENVIRONMENT = """\
{name: A, value: true} => 7:30: env A=true: true or false to YAML, but must be text. Write "true".
{name: A, value: 1} => 7:30: env A=1: a number, but must be text. Write "1".
{name: A, value: a}, {name: A, value: b} => 7:41: env A: a duplicate of the one in line 7. Keep one.
{value: a} => 7:13: spec.containers[0].env[0]: has no name. Add name.
{name: A, valueForm: {}} => 7:23: spec.containers[0].env[0].valueForm: unknown key. Did you mean
    valueFrom?
{name: CUDA_DEVICE_MEMORY_LIMIT, value: 4q} => 7:53: env CUDA_DEVICE_MEMORY_LIMIT=4q (HAMi): not a
    size. Write e.g. 4g, 4096m or 4194304k.
{name: NVIDIA_GPU_MEMORY_LIMT, value: '4096'} => 7:20: env NVIDIA_GPU_MEMORY_LIMT=4096: not a key of
    NVIDIA. Did you mean NVIDIA_GPU_MEMORY_LIMIT?"""


@pytest.mark.parametrize("row", IN_ENVIRONMENT.replace("\n    ", " ").splitlines())
def test_errors_in_the_environment_are_found(row: str) -> None:
    env, expected = row.split(" => ")
    assert told(pod(env=env)) == [expected]


def test_a_lenient_check_enforces_the_nodes_rules_and_warns_of_the_rest() -> None:
    text = pod("limits: {tke.cloud.tencent.com/qgpu-core: 7}")
    assert told(text, strict=False) == []
    assert any("not a multiple of 5" in line for line in told(text, "warning", strict=False))


def test_a_key_that_reaches_no_runtime_is_reported_with_meaning_and_translator() -> None:
    (line,) = told(pod("limits: {nvidia.com/gpumem: 3000}"), INFO)
    assert line.startswith("8:47: info: limit nvidia.com/gpumem=3000 (HAMi): means memory=3000MiB")
    assert "and is not passed to the container runtime. Translated by: HAMi's device plugin" in line
    assert line.endswith("or `gpushare convert`, to keys of gpushare.")


def test_a_variable_of_ours_alone_in_a_pod_is_a_warning() -> None:
    env = "{name: GPUSHARE_MEMORY, value: 4GiB}"
    (line,) = told(pod(env=env), "warning")
    assert line == (
        "7:44: warning: env GPUSHARE_MEMORY=4GiB: requests nothing by itself in a pod, unless "
        "trust.env of the node is request. Write the annotation gpushare.io/container.c.memory."
    )
    annotated_too = pod(annotations="gpushare.io/container.c.memory: 8GiB", env=env)
    assert told(annotated_too, "warning") == []


IN_COMPOSE = """
services: {a: {image: i, environment: {GPUSHARE_MEMORY: 4Q}}} => 1:57: env GPUSHARE_MEMORY=4Q:
    not a size. Write e.g. 4GiB.
services: {a: {image: i, environment: {A: {}}}} => 1:43: env A: a mapping, but must be text or a
    number or true or false. Write text.
services: {a: {image: i, environment: [1]}} => 1:40: services.a.environment[0]=1: a number, but must
    be text. Write "1".
services: {a: {image: i, annotations: [gpushare.io/memory=x]}} => 1:40: annotation
    gpushare.io/memory=x: not a size. Write e.g. 4GiB.
"""


@pytest.mark.parametrize("row", IN_COMPOSE.replace("\n    ", " ").strip().splitlines())
def test_errors_in_a_compose_file_are_found(row: str) -> None:
    text, expected = row.split(" => ")
    assert expected in told(text)


DOCS = Path(__file__).parents[3] / "docs/how-to"


def blocks(page: str) -> list[str]:
    """Return the manifests of a page."""
    text = (DOCS / page).read_text()
    return [part.partition("```")[0] for part in text.split("```yaml\n")[1:]]


def with_pods(page: str) -> list[str]:
    return [text for text in blocks(page) if "containers:" in text]


@pytest.mark.parametrize(
    "page",
    ["kubernetes.md", "kubernetes-annotations.md", "kubernetes-plugin.md", "kubernetes-dra.md"],
)
def test_the_pods_of_the_how_tos_request_a_gpu_and_have_no_finding(
    tmp_path: Path, page: str
) -> None:
    texts = [text for text in with_pods(page) if "nvidia.com/" not in text]
    assert texts
    for number, text in enumerate(texts):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        found = check(read(str(file)), strict=False)
        assert (found.findings, found.asking) == ((), found.containers)
