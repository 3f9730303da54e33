# SPDX-License-Identifier: Apache-2.0
"""A container's programs, however they are started, see the card of their quota."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.bundle import Bundle, busybox

GIB = 1 << 30
USER = {"uid": 1000, "gid": 1000}
Change = Callable[[Bundle], Any]


def as_user(bundle: Bundle) -> None:
    bundle.config["process"]["user"] = USER


def setuid(bundle: Bundle) -> None:
    """A setuid program ignores LD_LIBRARY_PATH and LD_PRELOAD; what is mounted it finds."""
    as_user(bundle)
    bundle.config["process"]["noNewPrivileges"] = False
    (bundle.rootfs / PROGRAM.lstrip("/")).chmod(0o4755)


def read_only(bundle: Bundle) -> None:
    bundle.config["root"]["readonly"] = True


@pytest.fixture
def bundle(stack: Stack) -> Bundle:
    return Bundle(stack, quota={"memory": "4GiB"}, files=busybox())


@pytest.mark.gate
@pytest.mark.parametrize("change", [as_user, setuid, read_only])
def test_under_any_user(bundle: Bundle, change: Change) -> None:
    change(bundle)
    bundle.save()
    with bundle.started() as tenant:
        assert tenant.ask("info")["total"] == 4 * GIB
        assert tenant.ask(f"alloc {4 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"


def test_an_environment_cannot_point_to_other_pages(bundle: Bundle) -> None:
    script = f"GPUSHARE_TENANT_DIR=/tmp exec {PROGRAM}"
    bundle.config["process"]["args"] = ["/bin/busybox", "sh", "-c", script]
    bundle.save()
    with bundle.started() as tenant:
        assert tenant.ask("info")["total"] == 4 * GIB
