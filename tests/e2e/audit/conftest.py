# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.waiting import wait_until
from tests.stack import Stack

HERE = Path(__file__).parent
LIBRARIES = HERE.parents[2] / "libhook"


@pytest.fixture(scope="session")
def audited() -> Iterator[Stack]:
    """A daemon of its own that knows what a context takes, so that it acts."""
    with Stack() as made:
        made.start_daemon()
        log = made.root / "gpushared.log"
        wait_until(lambda: '"context-measured"' in log.read_text())
        yield made


@pytest.fixture(scope="session")
def taker(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A program that has the driver in it, and opens no library at all."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.fail("gcc is not installed: run ./dev setup")
    output = tmp_path_factory.mktemp("taker") / "taker"
    includes = [f"-I{LIBRARIES / folder}" for folder in ("", "include", "simulator", "image")]
    sources = [*(LIBRARIES / "simulator").glob("*.c"), *(LIBRARIES / "image").glob("*.c")]
    flags = ["-static", "-std=gnu11", "-D_GNU_SOURCE", "-O1", *includes]
    argv = [compiler, *flags, *map(str, sources), str(HERE / "taker.c"), "-o", str(output)]
    subprocess.run(argv, check=True, stderr=subprocess.DEVNULL)
    return output.read_bytes()
