# SPDX-License-Identifier: Apache-2.0
"""Annotations of a pod: which of them are for which of its containers."""

from __future__ import annotations

import pytest

from gpushare.quota.annotations import pod_of, without_pod
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from tests.unit.quota.records import rows

GIB = 1 << 30
CONTAINERD = {
    "io.kubernetes.cri.container-name": "train",
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.sandbox-id": "5a4d",
    "io.kubernetes.cri.sandbox-name": "job-1",
    "io.kubernetes.cri.sandbox-namespace": "team",
}
CRI_O = {
    "io.kubernetes.container.name": "train",
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.cri-o.SandboxID": "5a4d",
    "io.kubernetes.pod.name": "job-1",
    "io.kubernetes.pod.namespace": "team",
}
PROXY = {**CONTAINERD, "io.kubernetes.cri.container-name": "proxy"}


def scoped(container: str = "train", key: str = "memory", text: str = "4GiB") -> dict[str, str]:
    return {f"gpushare.io/container.{container}.{key}": text}


@pytest.mark.parametrize("annotations", [CONTAINERD, CRI_O])
def test_either_engine_s_annotations_identify_the_pod(annotations: dict[str, str]) -> None:
    pod = pod_of(annotations)
    assert pod is not None
    assert (pod.container, pod.sandbox, pod.namespace, pod.name) == (
        *("train", "5a4d", "team", "job-1"),
    )
    assert str(pod) == "team/job-1"


@pytest.mark.parametrize("annotations", [CONTAINERD, CRI_O])
def test_untrusted_annotations_identify_no_pod(annotations: dict[str, str]) -> None:
    mine = {"gpushare.io/memory": "4GiB", "org.example/x": "y"}
    assert without_pod({**annotations, **mine}) == mine
    assert pod_of(mine) is None


@pytest.mark.parametrize("annotations", [CONTAINERD, CRI_O])
def test_a_scoped_annotation_reaches_its_container_alone(annotations: dict[str, str]) -> None:
    asked = scoped() | scoped("sidecar", text="nonsense of another program")
    assert parse_request({**annotations, **asked}, {}).valid().memory_bytes == 4 * GIB


def test_a_sidecar_gets_nothing_of_another_containers_request_and_a_note() -> None:
    quota = parse_request({**PROXY, **scoped()}, {}).valid()
    assert not quota.requested
    told = 'the annotations of the pod are for "train", and this is "proxy"'
    assert quota.notes == (told,)
    assert resolve_request(quota).why.startswith(f"no GPU: {told}; ")


def test_an_annotation_without_a_container_applies_to_the_only_named_one() -> None:
    annotations = scoped() | {"gpushare.io/placement": "spread", "gpushare.io/memory": "2GiB"}
    asked = parse_request({**CONTAINERD, **annotations}, {}).valid()
    assert (asked.placement, asked.memory_bytes) == ("spread", 2 * GIB)
    assert not parse_request({**PROXY, **annotations}, {}).valid().requested


def test_an_annotation_without_a_container_is_refused_if_two_are_named() -> None:
    annotations = {**scoped(), **scoped("eval"), "gpushare.io/placement": "spread"}
    with pytest.raises(QuotaError) as refused:
        parse_request({**CONTAINERD, **annotations}, {}).valid()
    assert str(refused.value) == (
        "pod annotation gpushare.io/placement=spread: names no container, "
        "but other annotations name train and eval. Write gpushare.io/container.train.placement."
    )
    assert not parse_request({**PROXY, **annotations}, {}).valid().requested


def test_an_annotation_that_the_pod_has_too_is_the_pods() -> None:
    of_pod = {"gpushare.io/memory": "2GiB"}
    annotations = {**CONTAINERD, **of_pod}
    for seen in (of_pod, None):
        asked = parse_request(annotations, {}, of_pod=seen).valid()
        assert rows(asked.requested) == {"memory": "2GiB pod annotation"}
    assert rows(parse_request(annotations, {}, of_pod={}).valid().requested) == {
        "memory": "2GiB annotation"
    }


def test_a_scope_outside_of_a_pod_is_refused() -> None:
    with pytest.raises(
        QuotaError, match=r"and this container is not in a pod. Write gpushare\.io/memory."
    ):
        parse_request(scoped(), {}).valid()
