# SPDX-License-Identifier: Apache-2.0
"""Containers of ctr, which knows no handlers: their quota, and its end with theirs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.system.waiting import wait_until

from .ctr import ANNOTATION, Ctr
from .slices import GIB, NO_DRIVER, allocated


@pytest.mark.gate
@pytest.mark.parametrize("asks", [ANNOTATION, ("--env", "GPUSHARE_MEMORY=4GiB", "--read-only")])
def test_a_container_gets_its_request(ctr: Ctr, asks: tuple[str, ...]) -> None:
    ctr.holds_its_quota(*ctr.argv("--rm", *asks)[1:])
    assert ctr.run("--rm").returncode == NO_DRIVER  # the same without a request


def test_a_container_whose_shim_is_killed_is_released(ctr: Ctr) -> None:
    ctr.start()
    assert allocated(ctr.stage) == {ctr.full_name: 4 * GIB}
    [first] = ctr.processes()
    os.kill(parent_of(first), signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{first}").exists())
    wait_until(lambda: not allocated(ctr.stage))


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
