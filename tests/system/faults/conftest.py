# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack import Stack
from tests.stack.program import find
from tests.system.hostile.conftest import compiled, runtime
from tests.system.hostile.container import RuntimeNamespace

__all__ = ["compiled", "runtime"]


@pytest.fixture
def binds() -> str:
    """What binds a container that is created, "" for the default."""
    return ""


@pytest.fixture
def place(binds: str) -> Iterator[RuntimeNamespace]:
    """A daemon that may be killed. It would wait long for a reservation that is never released."""
    with Stack() as stack:
        made = RuntimeNamespace(stack, bind=binds, bind_timeout_seconds=600)
        stack.start_daemon()
        yield made
        made.close()


def events(place: RuntimeNamespace, name: str) -> list[dict[str, object]]:
    """Return the lines of the log about `name`."""
    return [line for line in place.log_lines() if line["event"] == name]


def in_own_mounts(script: str) -> tuple[str, ...]:
    """Return what starts a program in a mount namespace of its own, in which `script` was run."""
    return (find("unshare"), "--mount", "sh", "-c", f'{script} && exec "$@"', "sh")
