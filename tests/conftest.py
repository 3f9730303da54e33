# SPDX-License-Identifier: Apache-2.0
"""How the tests share the machine: see run_tests in ./dev."""

from __future__ import annotations

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

E2E = "tests/e2e/"
ENGINES = "tests/e2e/engines/"
#: As `distribution` in tests/e2e/engines/conftest.py names them.
DISTRIBUTIONS = ("host", "debian13")


class OneAtATime(LoadScopeScheduling):  # type: ignore[misc]
    """The end-to-end tests in one worker and in order, for they share the machine.

    Those of a distribution's engines share that distribution's stage, and nothing with others. The
    rest go wherever there is time. xdist's own `loadgroup` does the same by writing marks into node
    ids, which pytest 9 no longer reads back: they then ran side by side, without a word.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(ENGINES):
            words = nodeid.partition("[")[2].rstrip("]").split("-")
            return next((ENGINES + name for name in DISTRIBUTIONS if name in words), ENGINES)
        return E2E if nodeid.startswith(E2E) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneAtATime:
    """Give xdist our scheduler, whatever --dist says."""
    return OneAtATime(config, log)
