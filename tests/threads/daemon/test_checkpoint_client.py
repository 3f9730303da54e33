# SPDX-License-Identifier: Apache-2.0
"""The eviction worker as gpushared asks it: a call that hangs ends with the worker."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.eviction import checkpoint_client as module
from gpushare.daemon.eviction import worker_main as api
from gpushare.daemon.eviction.checkpoint_client import (
    CheckpointClient,
    CheckpointError,
    why_no_moves,
    why_unsupported,
)
from tests.unit.daemon import scripted_worker
from tests.unit.daemon.fakes import FakeDaemon

SCRIPT = Path(scripted_worker.__file__)
DONE = {"code": 0, "error": "", "seconds": 0.25}
REFUSED = {"code": 801, "error": "CUDA_ERROR_NOT_SUPPORTED", "seconds": 0.5}


@dataclass
class Script:
    """What the worker does, and the client that asks it."""

    file: Path
    client: CheckpointClient
    pids: list[int]

    def orders(self, answers: dict[str, Any], **orders: str) -> None:
        every = {"load": {"has_api": True}, **answers}
        self.file.write_text(json.dumps({"answers": every, **orders}))


@pytest.fixture
def script(node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    file = tmp_path / "orders"
    monkeypatch.setattr(
        module, "python_command", lambda _: [sys.executable, str(SCRIPT), str(file)]
    )
    pids: list[int] = []
    made = Script(file, CheckpointClient(node.node.loaded, pids.append), pids)
    made.orders({})
    yield made
    made.client.close()


def test_one_worker_answers_all_and_is_none_of_the_non_tenants(script: Script) -> None:
    script.orders({"state": {**DONE, "state": 2}, "checkpoint": DONE, "unlock": DONE})
    assert script.client.state(7) == api.CHECKPOINTED
    script.client.checkpoint(7, 1 << 30)
    script.client.unlock(7)
    assert len(script.pids) == 1
    assert script.client.driver_seconds == 0.75


def test_a_refusal_has_the_drivers_words_and_the_others_are_locked(script: Script) -> None:
    script.orders({"lock": {"answers": [DONE, REFUSED]}, "restore": REFUSED})
    first, second = script.client.lock([7, 8])
    assert first is None
    assert isinstance(second, CheckpointError)
    assert (str(second), second.code) == ("lock: CUDA_ERROR_NOT_SUPPORTED", 801)
    with pytest.raises(CheckpointError, match="restore: CUDA_ERROR_NOT_SUPPORTED"):
        script.client.restore(7, 0)


def test_a_call_that_hangs_ends_with_its_worker(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STATE_SECONDS", 0.2)
    script.orders({"state": {**DONE, "state": 1}}, state="hang")
    with pytest.raises(CheckpointError, match="not responding"):
        script.client.state(7)
    script.orders({"state": {**DONE, "state": 1}})
    monkeypatch.setattr(module, "STATE_SECONDS", 30.0)
    assert script.client.state(7) == api.LOCKED
    assert len(script.pids) == 2
    assert not Path(f"/proc/{script.pids[0]}").exists()


def test_a_worker_that_dies_or_talks_nonsense_is_replaced(script: Script) -> None:
    for order in ("die", "garbage", "half"):
        script.orders({"unlock": DONE}, unlock=order)
        with pytest.raises(CheckpointError, match="eviction worker"):
            script.client.unlock(7)
    script.orders({"unlock": {"fault": "AttributeError: no symbol"}})
    with pytest.raises(CheckpointError, match="no symbol"):
        script.client.unlock(7)
    script.orders({"unlock": DONE})
    script.client.unlock(7)


def test_a_library_without_the_api_is_named(script: Script) -> None:
    script.orders({"load": {"has_api": False}})
    with pytest.raises(CheckpointError, match=r"libcuda of driver 580\.65\.06 has no checkpoint"):
        script.client.state(7)


@pytest.mark.parametrize(
    ("version", "machine", "evicts", "moves"),
    [
        ("565.57.01", "x86_64", False, False),
        ("570.86.10", "x86_64", True, False),
        ("580.65.06", "x86_64", True, True),
        ("580.142", "aarch64", False, False),
        ("595.71.05", "aarch64", True, True),
        ("", "x86_64", False, False),
    ],
)
def test_what_each_driver_can(version: str, machine: str, *, evicts: bool, moves: bool) -> None:
    assert (not why_unsupported(version, machine)) == evicts
    assert (not why_no_moves(version, machine)) == moves


def test_the_structures_have_the_size_of_cuda_h() -> None:
    sizes = {ctypes.sizeof(one) for one in (api._LockArgs, api._NoArgs, api._RestoreArgs)}
    assert sizes == {64}
    assert api._RestoreArgs.count.offset == 8
    assert bytes(api._uuid("GPU-00112233-4455-6677-8899-aabbccddeeff"))[:3] == b"\x00\x11\x22"
