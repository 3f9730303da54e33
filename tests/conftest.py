# SPDX-License-Identifier: Apache-2.0
"""How the tests share the machine: see run_tests in ./dev."""

from __future__ import annotations

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

#: What shares something. The engines of a distribution share nothing with the machine's own.
TOGETHER = ("tests/e2e/engines/", "tests/e2e/")


class OneAtATime(LoadScopeScheduling):  # type: ignore[misc]
    """The end-to-end tests in one worker and in order, for they share the machine.

    So do those of the engines, in a worker of their own. The rest go wherever there is time.
    xdist's own `loadgroup` does the same by writing marks into node ids, which pytest 9 no longer
    reads back: they then ran side by side, without a word.
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((part for part in TOGETHER if nodeid.startswith(part)), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneAtATime:
    """Give xdist our scheduler, whatever --dist says."""
    return OneAtATime(config, log)
