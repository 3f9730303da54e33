# SPDX-License-Identifier: Apache-2.0
"""`top` without a terminal: text once, documents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.conftest import CARD, tenant
from tests.unit.cli.fake_daemon import AnsweringDaemon, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result

    Cli = Callable[..., Result]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def test_a_stream_has_a_document_a_line_and_goes_on_when_the_daemon_is_back(
    tmp_path: Path,
) -> None:
    answers = {"cards": rows(CARD), "tenants": rows(tenant("train", 3.9, 4))}
    path = tmp_path / "control.sock"
    argv = [sys.executable, "-m", "gpushare.cli", "top", "--json", "--interval", "0.1"]
    environment = {**os.environ, "GPUSHARE_SOCKET": str(path)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as stream:
        assert stream.stdout is not None
        assert "no " + str(path) in json.loads(stream.stdout.readline())["error"]
        with AnsweringDaemon(path, answers).running():
            while "error" in (document := json.loads(stream.stdout.readline())):
                pass
        assert document["containers"][0]["name"] == "train"
        path.unlink()
        while "error" not in json.loads(stream.stdout.readline()):
            pass
        stream.send_signal(signal.SIGINT)
        assert stream.wait(timeout=20) == 0
