# SPDX-License-Identifier: Apache-2.0
"""Containers that were made for another system, as its users write them, without a change."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
import yaml

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
ALIBABA = ("ALIYUN_COM_GPU_MEM_DEV=140", "ALIYUN_COM_GPU_MEM_CONTAINER=35")


def bundle_of(stack: Stack, *env: str, **annotations: str) -> Bundle:
    bundle = Bundle(stack, annotations=annotations)
    bundle.config["process"]["env"] += env
    bundle.save()
    return bundle


def inspected(stack: Stack, bundle: Bundle) -> str:
    done = subprocess.run(
        [*stack.cli, "inspect", bundle.id], check=True, capture_output=True, env=stack.environment
    )
    return done.stdout.decode()


def admitted(limits: dict[str, str], **labels: str) -> dict[str, str]:
    """Return the annotations of a pod that the cluster's policy has admitted."""
    container = {"name": "train", "image": "IMAGE", "resources": {"limits": limits}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": labels},
        "spec": {"containers": [container]},
    }
    found: dict[str, str] = mutate(translation(), pod)["metadata"]["annotations"]
    return found


def total_of_a_card(stack: Stack) -> int:
    done = subprocess.run(
        [*stack.cli, "ls", "--json"], check=True, capture_output=True, env=stack.environment
    )
    [card] = json.loads(done.stdout)
    return int(card["memory_bytes"])


def test_one_of_hamis_sees_its_slice_and_no_more(stack: Stack) -> None:
    bundle = bundle_of(stack, *HAMI)
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask("info")["total"] == 4 * GIB
        assert tenant.ask(f"alloc {4 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
        told = inspected(stack, bundle)
    assert 'HAMi: env CUDA_DEVICE_MEMORY_LIMIT_0 "4096m" is memory 4GiB' in told


def test_one_of_alibabas_has_its_part_of_the_card(stack: Stack) -> None:
    with bundle_of(stack, *ALIBABA).run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask("info")["total"] == total_of_a_card(stack) // 4


def test_a_pod_with_limits_has_its_share_when_the_policy_has_admitted_it(stack: Stack) -> None:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
    bundle = Bundle(stack, annotations={**POD, **admitted(limits)})
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask("info")["total"] == 4 * GIB
        told = inspected(stack, bundle)
    assert 'limit nvidia.com/gpumem "4096" is memory 4GiB, ' in told


def test_an_amount_that_its_vendor_refuses_is_refused_by_its_limit(stack: Stack) -> None:
    annotations = admitted({"aliyun.com/gpu-mem": "9"}, **{"aliyun.com/gpu-count": "2"})
    with Bundle(stack, annotations={**POD, **annotations}).run() as tenant:
        assert tenant.wait() != 0
    assert "limit aliyun.com/gpu-mem=9 (Alibaba ACK and cGPU): does not divide" in tenant.errors


@pytest.fixture
def strict() -> Iterator[Stack]:
    with Stack() as made:
        said = yaml.safe_load(made.config.read_text())
        made.config.write_text(yaml.safe_dump({**said, "dialects": {"mode": "strict"}}))
        made.start_daemon()
        yield made


def test_two_at_once_are_refused_by_name_where_the_node_is_strict(strict: Stack) -> None:
    bundle = bundle_of(strict, *HAMI, *ALIBABA)
    before = bundle.read()
    with bundle.run() as tenant:
        assert tenant.wait() != 0
    [line] = tenant.errors.splitlines()
    assert line.startswith("gpushare: env CUDA_DEVICE_")
    assert "uses HAMi keys, and " in line
    assert 'env ALIYUN_COM_GPU_MEM_CONTAINER "35" uses Alibaba' in line
    assert (
        ". Keep one of the two, or set dialects.mode to lenient to apply the smaller value." in line
    )
    assert bundle.read() == before
