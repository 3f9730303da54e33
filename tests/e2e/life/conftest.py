# SPDX-License-Identifier: Apache-2.0
"""Each case under runc and crun, for a container that asks for nothing and for one with a quota."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.client import Client
from tests.e2e.low_level import Runtime, behind_launcher, low_level
from tests.e2e.waiting import wait_until
from tests.stack import Stack

from .pair import DEAD, QUOTA, UNMARKED, Kind, Pair


@pytest.fixture(scope="session")
def node() -> Iterator[Stack]:
    """A daemon whose mounts reach the mount namespaces that are made later, as on most machines."""
    with Stack() as made:
        for words in (["--bind", str(made.root)], ["--make-shared"]):
            subprocess.run(["mount", *words, str(made.root)], check=True)
        made.start_daemon()
        yield made


@pytest.fixture(params=["runc", "crun"])
def name(request: pytest.FixtureRequest) -> str:
    """The low-level runtime."""
    found: str = request.param
    return found


@pytest.fixture(params=[UNMARKED, DEAD, QUOTA], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def pair(name: str, kind: Kind, node: Stack, tmp_path: Path) -> Iterator[Pair]:
    argv = low_level(name)
    socket = node.socket if kind.daemon else tmp_path / "nobody-listens"
    bare = Runtime(argv, tmp_path / "state")
    launched = Runtime(behind_launcher(tmp_path / "bin", argv, socket), tmp_path / "state")
    made = Pair(bare, launched, tmp_path, kind)
    yield made
    # Whatever a case did with its container, nothing stays promised to it.
    wait_until(lambda: not _promised(node, made.id))


def _promised(node: Stack, identity: str) -> bool:
    rows = Client(node.socket).tenants()
    return any(row["id"] == identity for row in rows)
