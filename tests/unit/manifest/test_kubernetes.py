# SPDX-License-Identifier: Apache-2.0
"""Objects of Kubernetes: where their pods are, and which annotations those have."""

from __future__ import annotations

import textwrap

import pytest

from gpushare.manifest import Container, ManifestFile, ManifestValues, read


def manifest(text: str) -> ManifestFile:
    return read("pod.yaml", textwrap.dedent(text))


def texts(values: ManifestValues) -> dict[str, str]:
    return {name: value.text for name, value in values.items()}


def only(file: ManifestFile) -> Container:
    (container,) = file.containers
    return container


POD = """\
    apiVersion: v1
    kind: Pod
    metadata:
      name: train
      namespace: team
      labels: {app: x}
      annotations:
        gpushare.io/memory: 4GiB
    spec:
      runtimeClassName: gpushare
      initContainers:
        - {name: fetch, image: i}
      containers:
        - name: train
          image: pytorch
          env:
            - name: CUDA_DEVICE_MEMORY_LIMIT
              value: 4g
            - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
            - {name: EMPTY}
          resources:
            limits:
              nvidia.com/gpu: 1
            requests: {nvidia.com/gpu: "1"}
        - {name: side, image: i}
"""


def test_a_pod_has_everything_with_its_place() -> None:
    file = manifest(POD)
    (document,) = file.documents
    assert str(document) == "Pod team/train"
    assert [(one.name, one.position, one.init) for one in document.containers] == [
        ("fetch", 0, True),
        ("train", 0, False),
        ("side", 1, False),
    ]
    train = document.containers[1]
    assert train.image == "pytorch"
    assert train.pod.runtime_class == "gpushare"
    assert texts(train.annotations) == {"gpushare.io/memory": "4GiB"}
    assert texts(train.labels) == {"app": "x"}
    assert texts(train.env) == {"CUDA_DEVICE_MEMORY_LIMIT": "4g"}
    assert train.unknown == ("NODE",)
    assert texts(train.limits) == texts(train.requests) == {"nvidia.com/gpu": "1"}
    value = train.env["CUDA_DEVICE_MEMORY_LIMIT"]
    assert (value.line, value.column) == (18, 18)
    assert value.place == ("spec", "containers", 0, "env", 0, "value")
    assert value.key_node.text == "CUDA_DEVICE_MEMORY_LIMIT"
    node = train.limits["nvidia.com/gpu"].value_node
    assert file.text[node.start : node.end] == "1"


TEMPLATE = "{metadata: {annotations: {a: b}}, spec: {containers: [{name: c, image: i}]}}"


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("Deployment", "{template: T}"),
        ("StatefulSet", "{template: T}"),
        ("DaemonSet", "{template: T}"),
        ("ReplicaSet", "{template: T}"),
        ("Job", "{template: T}"),
        ("CronJob", "{jobTemplate: {spec: {template: T}}}"),
        ("PyTorchJob", "{pytorchReplicaSpecs: {Worker: {replicas: 2, template: T}}}"),
        ("RayCluster", "{workerGroupSpecs: [{template: T}]}"),
        ("Training", "{somewhere: {else: [{template: T}]}}"),
    ],
)
def test_whatever_has_a_pod_template_has_its_pods(kind: str, way: str) -> None:
    spec = way.replace("T}", f"{TEMPLATE}}}")
    text = f"{{apiVersion: v1, kind: {kind}, metadata: {{annotations: {{n: o}}}}, spec: {spec}}}"
    container = only(manifest(text))
    assert container.document.kind == kind
    assert texts(container.annotations) == {"a": "b"}


def test_annotations_of_a_deployment_itself_are_not_those_of_its_pods() -> None:
    container = only(
        manifest(
            """\
            kind: Deployment
            metadata: {annotations: {gpushare.io/memory: 4GiB}}
            spec:
              template:
                spec: {containers: [{name: c, image: i}]}
            """
        )
    )
    assert texts(container.annotations) == {}
    assert texts(container.document.annotations) == {"gpushare.io/memory": "4GiB"}


def test_each_task_of_a_volcano_job_is_a_pod() -> None:
    text = f"{{kind: Job, spec: {{tasks: [{{name: a, template: {TEMPLATE}}}, "
    text += f"{{name: b, template: {TEMPLATE}}}]}}}}"
    places = [container.place for container in manifest(text).containers]
    way = ("template", "spec", "containers", 0)
    assert places == [("spec", "tasks", 0, *way), ("spec", "tasks", 1, *way)]


def test_an_inference_service_hands_on_its_annotations_and_has_a_model_for_a_container() -> None:
    container = only(
        manifest(
            """\
            kind: InferenceService
            metadata: {name: llm, annotations: {serving.kserve.io/x: "true"}}
            spec:
              predictor:
                annotations: {gpushare.io/memory: 4GiB}
                model:
                  modelFormat: {name: huggingface}
                  resources: {limits: {nvidia.com/gpu: "1"}}
            """
        )
    )
    assert container.name == "kserve-container"
    assert texts(container.limits) == {"nvidia.com/gpu": "1"}
    assert set(container.annotations) == {"serving.kserve.io/x", "gpushare.io/memory"}


def test_a_container_of_a_spec_needs_no_more_than_a_name() -> None:
    text = "kind: Pod\nspec: {containers: [{name: a}, {other: b}]}\n---\ncontainers: [{name: c}]\n"
    assert [one.name for one in read("f.yaml", text).containers] == ["a"]


def test_a_step_of_argo_has_one_container() -> None:
    container = only(
        manifest(
            """\
            kind: Workflow
            metadata: {name: w}
            spec:
              templates:
                - name: train
                  metadata: {annotations: {a: b}}
                  container: {image: i, resources: {limits: {nvidia.com/gpu: 1}}}
            """
        )
    )
    assert texts(container.limits) == {"nvidia.com/gpu": "1"}
    assert texts(container.annotations) == {"a": "b"}


def test_a_list_is_its_items_and_documents_follow_each_other() -> None:
    pod = "{kind: Pod, metadata: {name: N}, spec: {containers: [{name: c, image: i}]}}"
    text = f"# nothing\n---\n{{kind: List, items: [{pod}, {{kind: Service}}]}}\n---\n{pod}\n---\n"
    found = [(str(document), document.line) for document in manifest(text).documents]
    assert found == [("Pod N", 3), ("Service", 3), ("Pod N", 5)]


def test_a_container_that_an_alias_brings_is_in_each_of_its_pods() -> None:
    file = manifest(
        """\
        kind: TFJob
        spec:
          tfReplicaSpecs:
            Chief: &it {template: {spec: {containers: [{name: c, image: i}]}}}
            Worker: *it
        """
    )
    assert [container.place[2] for container in file.containers] == ["Chief", "Worker"]
    assert [container.line for container in file.containers] == [4, 4]


def test_a_node_has_its_labels_and_annotations() -> None:
    (document,) = manifest(
        """\
        kind: Node
        metadata:
          name: n
          labels: {ack.node.gpu.schedule: cgpu}
          annotations: {hami.io/device-cordon: GPU-1}
        """
    ).documents
    assert texts(document.labels) == {"ack.node.gpu.schedule": "cgpu"}
    assert texts(document.annotations) == {"hami.io/device-cordon": "GPU-1"}


def test_a_device_plugins_file_in_a_configmap_is_read_with_the_lines_of_the_whole() -> None:
    file = manifest(
        """\
        kind: ConfigMap
        metadata: {name: plugin}
        data:
          note: "sharing: ["
          any: |-
            version: v1
            sharing:
              timeSlicing:
                resources:
                  - name: nvidia.com/gpu
                    replicas: 10
        """
    )
    (document,) = file.documents
    value = document.plugin["sharing.timeSlicing.resources.replicas"]
    assert value.text == "10"
    assert (value.line, value.column) == (11, 23)
    node = value.value_node
    assert file.text[node.start : node.end] == "10"
    assert set(document.data) == {"note", "any"}


def test_a_device_plugins_file_by_itself() -> None:
    (document,) = manifest("version: v1\nsharing: {mps: {renameByDefault: true}}\n").documents
    assert document.kind == "device-plugin"
    assert texts(document.plugin) == {"sharing.mps.renameByDefault": "true"}


CLAIM = """\
    apiVersion: resource.k8s.io/v1
    kind: ResourceClaimTemplate
    metadata: {name: half}
    spec:
      spec:
        devices:
          requests:
            - name: gpu
              exactly:
                deviceClassName: gpu.nvidia.com
                count: 2
                capacity: {requests: {memory: 4Gi}}
          config:
            - requests: [gpu]
              opaque:
                driver: gpu.nvidia.com
                parameters:
                  kind: GpuConfig
                  sharing: {strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 50}}
"""


def test_a_container_has_the_requests_of_its_claims() -> None:
    file = manifest(
        textwrap.dedent(CLAIM)
        + textwrap.dedent(
            """\
            ---
            kind: Pod
            spec:
              resourceClaims: [{name: g, resourceClaimTemplateName: half}]
              containers:
                - {name: c, image: i, resources: {claims: [{name: g}]}}
                - {name: d, image: i}
            """
        )
    )
    asked, other = file.containers
    assert (
        texts(asked.claim).items()
        >= {
            "gpu.nvidia.com": "2",
            "capacity.requests.memory": "4Gi",
            "sharing.strategy": "MPS",
            "sharing.mpsConfig.defaultActiveThreadPercentage": "50",
        }.items()
    )
    assert asked.claim["gpu.nvidia.com"].line == 11
    assert other.claim == {}


def test_a_claim_of_the_beta_says_its_class_beside_its_name() -> None:
    (document,) = manifest(
        """\
        kind: ResourceClaim
        spec: {devices: {requests: [{name: gpu, deviceClassName: gpu.nvidia.com}]}}
        """
    ).documents
    assert document.claim["gpu.nvidia.com"].text == "1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just text",
        "- a\n- b\n",
        "kind: Pod\nspec: {containers: nothing, initContainers: [1, [2]]}\n",
        "kind: Pod\nmetadata: [x]\nspec: [{containers: [{image: [i], env: {a: b}}]}]\n",
        "kind: [Pod]\nspec:\n",
        "kind: ConfigMap\ndata: [sharing]\n",
        "kind: ResourceClaim\nspec: {devices: {requests: {a: b}, config: 1}}\n",
        "services: {a: 1, b: [image]}\n",
        "containerDefinitions: {a: b}\n",
        "ociVersion: 1\nprocess: [x]\nannotations: [y]\n",
        "kind: List\nitems: [[], 1, {kind: Pod}]\n",
    ],
)
def test_nodes_of_another_shape_are_skipped(text: str) -> None:
    for container in manifest(text).containers:
        assert not container.env
        assert not container.annotations
