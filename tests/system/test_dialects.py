# SPDX-License-Identifier: Apache-2.0
"""Containers that were made for another system, as its users write them, without a change."""

from __future__ import annotations

import pytest

from tests.admission import mutate
from tests.admission.rendered import translation
from tests.stack import Stack
from tests.stack.bundle import Bundle

GIB = 1 << 30
HAMI = ("CUDA_DEVICE_MEMORY_LIMIT_0=4096m", "CUDA_DEVICE_SM_LIMIT=30")
# As ACK's scheduler and device plugin write them: a part of what it takes a card to have.
POD = {
    "io.kubernetes.cri.container-name": "train",
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.sandbox-id": "5a4d",
    "io.kubernetes.cri.sandbox-name": "job-1",
    "io.kubernetes.cri.sandbox-namespace": "team",
}


def bundle_of(stack: Stack, *env: str, **annotations: str) -> Bundle:
    bundle = Bundle(stack, annotations=annotations)
    bundle.config["process"]["env"] += env
    bundle.save()
    return bundle


def admitted(limits: dict[str, str]) -> dict[str, str]:
    """Return the annotations of a pod that the cluster's policy has admitted."""
    container = {"name": "train", "image": "IMAGE", "resources": {"limits": limits}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [container]},
    }
    found: dict[str, str] = mutate(translation(), pod)["metadata"]["annotations"]
    return found


@pytest.mark.gate
def test_one_of_hamis_sees_its_slice_and_no_more(stack: Stack) -> None:
    bundle = bundle_of(stack, *HAMI)
    with bundle.started() as tenant:
        assert tenant.ask("info")["total"] == 4 * GIB
        assert tenant.ask(f"alloc {4 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
        told = stack.gpushare("inspect", bundle.id).stdout
    assert 'HAMi: env CUDA_DEVICE_MEMORY_LIMIT_0 "4096m" is memory 4GiB' in told


def test_a_pod_with_limits_has_its_share_when_the_policy_has_admitted_it(stack: Stack) -> None:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
    bundle = Bundle(stack, annotations={**POD, **admitted(limits)})
    with bundle.started() as tenant:
        assert tenant.ask("info")["total"] == 4 * GIB
        told = stack.gpushare("inspect", bundle.id).stdout
    assert 'limit nvidia.com/gpumem "4096" is memory 4GiB, ' in told
