# SPDX-License-Identifier: Apache-2.0
"""Containers that were made for another system, as its users write them, without a change."""

from __future__ import annotations

import pytest

from tests.stack import Stack
from tests.stack.bundle import Bundle

GIB = 1 << 30
HAMI = ("CUDA_DEVICE_MEMORY_LIMIT_0=4096m", "CUDA_DEVICE_SM_LIMIT=30")


def bundle_of(stack: Stack, *env: str, **annotations: str) -> Bundle:
    bundle = Bundle(stack, annotations=annotations)
    bundle.config["process"]["env"] += env
    bundle.save()
    return bundle


@pytest.mark.gate
def test_one_of_hamis_sees_its_slice_and_no_more(stack: Stack) -> None:
    bundle = bundle_of(stack, *HAMI)
    with bundle.started() as tenant:
        assert tenant.ask("info")["total"] == 4 * GIB
        assert tenant.ask(f"alloc {4 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
        told = stack.gpushare("inspect", bundle.id).stdout
    assert 'HAMi: env CUDA_DEVICE_MEMORY_LIMIT_0 "4096m" is memory 4GiB' in told
