# SPDX-License-Identifier: Apache-2.0
"""What the commands that are used most do not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.unit.cli.fake_daemon import AnsweringDaemon

#: Modules that take long to import, and that these commands have no use for.
HEAVY = {
    "asyncio",
    "curses",
    "http",
    "importlib.metadata",
    "jsonschema",
    "logging",
    "rich",
    "subprocess",
    "tempfile",
    "yaml",
    "gpushare.config",
    "gpushare.engines",
    "gpushare.oci",
    "gpushare.quota.parse",
}
PROGRAM = """\
import json, sys
before = set(sys.modules)
from gpushare.cli import gpushare
try:
    gpushare(prog_name="gpushare")
finally:
    print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)
"""


def imported(daemon: AnsweringDaemon, *words: str) -> set[str]:
    """Run a command; return what it imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env={**os.environ, "GPUSHARE_SOCKET": str(daemon.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout
    return set(json.loads(done.stderr))


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("ls",),
        ("ls", "--help"),
        ("ps",),
        ("set", "train", "--memory", "6GiB"),
    ],
    ids=" ".join,
)
def test_a_command_of_every_day_imports_nothing_heavy(
    daemon: AnsweringDaemon, words: tuple[str, ...]
) -> None:
    assert not imported(daemon, *words) & HEAVY
