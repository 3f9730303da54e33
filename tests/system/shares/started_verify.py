# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify` of a share, as a user starts it, beside other tests: it takes most of a minute.

In slow motion: the machine's own jitter is a small part of a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.program import ServiceProcess


@dataclass(frozen=True)
class StartedVerify:
    """It runs on a card of its own, which no other program has used."""

    stack: Stack
    program: ServiceProcess

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return its exit status and what it printed. It leaves no container."""
        status = self.program.process.wait(timeout=300)
        assert Client(self.stack.socket).tenants() == []
        return status, self.program.log.read_text()


@contextmanager
def verify_started() -> Iterator[StartedVerify]:
    with Stack(time_scale=4) as stack:
        stack.start_daemon()
        words = ("verify", "--cores", "30", "--runtime", "host", "--json")
        yield StartedVerify(stack, stack.start("verify", [*stack.cli, *words]))
