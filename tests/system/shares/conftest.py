# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare import abi
from tests.stack import Stack
from tools.bench.shares.machine import Programs

from .served import Truth
from .tenants import SLOW, SharedCardStack

OTHER_DIR = abi.TENANT_DIR.replace("/opt/", "/tmp/")  # where a patched library looks
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs.build(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def shared_place(programs: Programs) -> Iterator[SharedCardStack]:
    """Two cards in slow motion and a daemon, for all tests of this folder."""
    with made(programs, cards=2, time_scale=SLOW) as place:
        yield place


@pytest.fixture
def place(shared_place: SharedCardStack) -> Iterator[SharedCardStack]:
    """The same; the containers that a test starts are gone after it."""
    before = [*shared_place.running]
    try:
        yield shared_place
    finally:
        shared_place.clear(but=before)


@contextmanager
def made(programs: Programs, *, cards: int, time_scale: float) -> Iterator[SharedCardStack]:
    with Stack(cards=cards, time_scale=time_scale) as stack:
        stack.start_daemon()
        device = Path(stack.env["GPUSHARE_SIM_DEVICE"])
        truth = Truth(programs.watch, device, stack.root / "readings", cards)
        place = SharedCardStack(stack, programs.work, truth)
        try:
            yield place
        finally:
            place.clear()
            truth.close()


@pytest.fixture(scope="session")
def attack(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a patched copy of the library, and a program that forges claims."""
    folder = tmp_path_factory.mktemp("attack")
    library = (programs.filters / "libcuda.so.1").read_bytes()
    patched = library.replace(abi.TENANT_DIR.encode(), OTHER_DIR.encode())
    assert patched != library
    (folder / "libcuda.so.1").write_bytes(patched)
    source = Path(__file__).with_name("claims.c")
    command = ["cc", "-static", f"-I{ROOT}/libhook/include", str(source)]
    subprocess.run([*command, "-o", str(folder / "claims")], check=True)
    return folder
