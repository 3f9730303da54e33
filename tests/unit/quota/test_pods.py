# SPDX-License-Identifier: Apache-2.0
"""Annotations of a pod: which of them are for which of its containers."""

from __future__ import annotations

import pytest

from gpushare.quota import QuotaError, give, pod_of, read_quota, without_pod

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
def test_either_engine_s_annotations_say_the_pod(annotations: dict[str, str]) -> None:
    pod = pod_of(annotations)
    assert pod is not None
    assert (pod.container, pod.sandbox, pod.namespace, pod.name) == (
        *("train", "5a4d", "team", "job-1"),
    )
    assert str(pod) == "team/job-1"


@pytest.mark.parametrize("annotations", [CONTAINERD, CRI_O])
def test_annotations_that_are_not_believed_say_no_pod(annotations: dict[str, str]) -> None:
    mine = {"gpushare.io/memory": "4GiB", "org.example/x": "y"}
    assert without_pod({**annotations, **mine}) == mine
    assert pod_of(mine) is None


@pytest.mark.parametrize("annotations", [CONTAINERD, CRI_O])
def test_a_scoped_annotation_reaches_its_container_alone(annotations: dict[str, str]) -> None:
    asked = scoped() | scoped("sidecar", text="nonsense of somebody else")
    assert read_quota({**annotations, **asked}, {}).memory_bytes == 4 * GIB


def test_a_sidecar_gets_nothing_of_what_another_is_asked_for_and_is_told_whose_it_is() -> None:
    quota = read_quota({**PROXY, **scoped()}, {})
    assert not quota.asked
    told = 'the annotations of its pod are for "train", and this is "proxy"'
    assert quota.notes == (told,)
    assert give(quota).why.startswith(f"no GPU: {told}; ")


def test_a_container_that_is_named_is_not_told_of_the_others() -> None:
    both = scoped() | scoped("eval")
    assert read_quota({**CONTAINERD, **both}, {}).notes == ()


def test_a_scoped_annotation_is_above_the_pods() -> None:
    asked = read_quota({**CONTAINERD, **scoped(), "gpushare.io/memory": "8GiB"}, {})
    assert asked.memory_bytes == 4 * GIB
    assert asked.notes == (
        (
            'pod annotation gpushare.io/memory "8GiB" was not taken: '
            'annotation gpushare.io/container.train.memory "4GiB" is above it'
        ),
    )


def test_what_names_no_container_is_for_the_only_one_that_is_named() -> None:
    annotations = scoped() | {"gpushare.io/placement": "spread", "gpushare.io/memory": "2GiB"}
    asked = read_quota({**CONTAINERD, **annotations}, {})
    assert (asked.placement, asked.memory_bytes) == ("spread", 2 * GIB)
    assert not read_quota({**PROXY, **annotations}, {}).asked


def test_what_names_no_container_is_refused_where_two_are_named() -> None:
    annotations = {**scoped(), **scoped("eval"), "gpushare.io/placement": "spread"}
    with pytest.raises(QuotaError) as refused:
        read_quota({**CONTAINERD, **annotations}, {})
    assert str(refused.value) == (
        'pod annotation gpushare.io/placement: "spread" is for no container by name, '
        "and those of train and eval may ask; write gpushare.io/container.train.placement"
    )
    assert not read_quota({**PROXY, **annotations}, {}).asked


def test_whoever_made_the_container_is_above_the_pod_s_author() -> None:
    of_pod = {**scoped(), "gpushare.io/memory": "2GiB", "gpushare.io/count": "4"}
    annotations = {**CONTAINERD, **of_pod, "gpushare.io/memory": "3GiB"}
    asked = read_quota(annotations, {}, of_pod=of_pod)
    assert (asked.memory_bytes, asked.count) == (3 * GIB, None)
    assert asked.asked["memory"].source.kind == "annotation"
    assert len(asked.notes) == 2


def test_what_the_pod_has_too_is_the_pod_s() -> None:
    of_pod = {"gpushare.io/memory": "2GiB"}
    annotations = {**CONTAINERD, **of_pod}
    for seen in (of_pod, None):
        asked = read_quota(annotations, {}, of_pod=seen)
        assert asked.rows() == {"memory": "2GiB pod annotation"}
    assert read_quota(annotations, {}, of_pod={}).rows() == {"memory": "2GiB annotation"}


def test_a_scope_outside_of_a_pod_is_refused() -> None:
    with pytest.raises(
        QuotaError, match=r"and this container is in none; write gpushare\.io/memory"
    ):
        read_quota(scoped(), {})
