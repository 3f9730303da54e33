# SPDX-License-Identifier: Apache-2.0
"""What fails a test of tests/unit is noticed, with the line that did it."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit import purity

pytestmark = pytest.mark.gate


@pytest.fixture(scope="module", autouse=True)
def watched() -> None:
    purity.watch()


def fork() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def run_thread() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def pair() -> None:
    for end in socket.socketpair():
        end.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("do", "what"),
    [
        (lambda: subprocess.run(["true"], check=True), "starts a process"),
        (fork, "starts a process"),
        (lambda: os.waitpid(os.posix_spawnp("true", ["true"], {}), 0), "starts a process"),
        (lambda: os.system("true"), "starts a process"),
        (run_thread, "starts a thread"),
        (pair, "opens a socket"),
        (lambda: time.sleep(0), "sleeps"),
    ],
)
def test_it_is_recorded_with_its_place(do: Callable[[], object], what: str) -> None:
    do()  # outside the block nothing is
    with purity.recorded() as found:
        do()
    do()
    assert found
    assert found[0].startswith(f"{what} at {__file__}:")


def test_files_and_time_are_no_matter() -> None:
    with purity.recorded() as found:
        time.monotonic()
        Path(__file__).read_bytes()
    assert not found
