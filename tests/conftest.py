# SPDX-License-Identifier: Apache-2.0
"""How the tests share the machine: see run_tests in ./dev."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

E2E = "tests/e2e/"
ENGINES = "tests/e2e/engines/"
#: Folders whose tests have all that they use to themselves.
ALONE = ("audit", "control", "faults", "hostile", "life", "upgrade")
#: As `distribution` in tests/e2e/engines/conftest.py names them.
DISTRIBUTIONS = ("host", "debian13")


class OneAtATime(LoadScopeScheduling):  # type: ignore[misc]
    """The end-to-end tests of one folder in one worker and in order: they share their containers.

    Those of a distribution's engines share that distribution's stage, and nothing with others. What
    measures shares is in order with what loads the machine most. The rest go where there is time.
    xdist's own `loadgroup` does the same by writing marks into node ids, which pytest 9 no longer
    reads back: they then ran side by side, without a word.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(ENGINES):
            words = nodeid.partition("[")[2].rstrip("]").split("-")
            return next((ENGINES + name for name in DISTRIBUTIONS if name in words), ENGINES)
        if not nodeid.startswith(E2E):
            return nodeid
        folder = nodeid.removeprefix(E2E).partition("/")[0]
        return E2E + folder if folder in ALONE else E2E


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneAtATime:
    """Give xdist our scheduler, whatever --dist says."""
    return OneAtATime(config, log)


class Checks:
    """`./dev check` beside the tests, on the time that they leave: most of them wait for others.

    What it found is printed before pytest's own count, and fails the run as a test does.
    """

    def __init__(self, said: Path) -> None:
        self._said = said
        # Of the idle class: whoever measures time and wakes has the processor at once.
        command = ["chrt", "--idle", "0", sys.executable, "-m", "tests.check"]
        with said.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Wait for the checks."""
        if self._process.wait() and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what they said."""
        terminalreporter.section("checks")
        terminalreporter.write(self._said.read_text(encoding="utf-8"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --checks."""
    parser.addoption("--checks", action="store_true", help="run ./dev check beside the tests")


def pytest_configure(config: pytest.Config) -> None:
    """Start the checks, in the process that hands out the tests."""
    if config.getoption("--checks") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(
            Checks(config.rootpath / "build/log/check.log"), "gpushare-checks"
        )
