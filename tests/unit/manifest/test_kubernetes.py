# SPDX-License-Identifier: Apache-2.0
"""Objects of Kubernetes: where their pods are, and which annotations those have."""

from __future__ import annotations

import textwrap

from gpushare.manifest import read
from gpushare.manifest.model import Container, ManifestFile, ManifestValues


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


def test_a_list_is_its_items_and_documents_follow_each_other() -> None:
    pod = "{kind: Pod, metadata: {name: N}, spec: {containers: [{name: c, image: i}]}}"
    text = f"# nothing\n---\n{{kind: List, items: [{pod}, {{kind: Service}}]}}\n---\n{pod}\n---\n"
    found = [(str(document), document.line) for document in manifest(text).documents]
    assert found == [("Pod N", 3), ("Service", 3), ("Pod N", 5)]


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
