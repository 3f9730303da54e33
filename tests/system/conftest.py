# SPDX-License-Identifier: Apache-2.0
"""Real programs, privately: root is needed, and a machine that ./dev setup has prepared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.verify import Report
from gpushare.verify.runners import Containerd, Docker
from tests.stack import Stack
from tests.stack.shared import SharedStack

from .own_machine import ROOT


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out of the gate what has none of its tests: it may import what only --all installs."""
    if not config.getoption("--gate"):
        return None
    is_file = collection_path.suffix == ".py"
    files = [collection_path] if is_file else collection_path.rglob("test_*.py")
    return None if any("mark.gate" in file.read_text() for file in files) else True


@pytest.fixture(autouse=True, scope="session")
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("starts engines and mounts: needs root (sudo ./dev test)")
    os.umask(0o022)  # another user reads what is made here, and gpushared what nobody else writes


@pytest.fixture(scope="session")
def shared() -> Iterator[SharedStack]:
    with SharedStack(Stack) as made:
        yield made


@pytest.fixture
def stack(shared: SharedStack) -> Iterator[Stack]:
    """One simulated card and one daemon; empty, and what the test leaves fails it."""
    with shared.lent() as made:
        yield made


@pytest.fixture
def own() -> Iterator[Stack]:
    """A stack of the test's, whose configuration and daemon it may change."""
    with Stack() as made:
        made.start_daemon()
        yield made


@pytest.fixture
def containerd(shared: SharedStack, stack: Stack) -> Containerd:  # noqa: ARG001 - runs in it
    return shared.containerd


@pytest.fixture
def docker(shared: SharedStack, stack: Stack) -> Docker:  # noqa: ARG001 - runs in it
    return shared.docker


@pytest.fixture
def report() -> Report:
    """Prints what a scenario did, for the reader of a failed test."""
    return Report(sys.stdout)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree, for those that install it with pip."""
    folder = tmp_path_factory.mktemp("wheel")
    made = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    subprocess.run([sys.executable, "-m", "pip", *made], check=True)
    (found,) = folder.glob("gpushare_runtime-*.whl")
    return found
