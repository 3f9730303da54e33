# SPDX-License-Identifier: Apache-2.0
"""The packages as ./dev package leaves them: built once, and again only if their inputs change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packages import __main__ as program
from packages import debian_root
from packages.workspace import Workspace


@pytest.fixture(scope="session")
def workspace() -> Workspace:
    """The workspace of this tree."""
    return Workspace.of(program.ROOT, program.ROOT / "build")


@pytest.fixture(scope="session")
def wheels(workspace: Workspace) -> list[Path]:
    """The wheels, aarch64 first."""
    return program.build(workspace, ["wheel"])


@pytest.fixture(scope="session")
def sdist(workspace: Workspace) -> Path:
    """The source distribution."""
    return program.build(workspace, ["sdist"])[0]


@pytest.fixture(scope="session")
def debs(workspace: Workspace) -> list[Path]:
    """The Debian packages, those of the oldest release first."""
    return program.build(workspace, ["deb"])


@pytest.fixture(scope="session")
def rpm(workspace: Workspace) -> Path:
    """The rpm."""
    return program.build(workspace, ["rpm"])[0]


@pytest.fixture(scope="session")
def image(workspace: Workspace) -> Path:
    """The archive of the image."""
    return program.build(workspace, ["image"])[0]


@pytest.fixture(scope="session")
def plugin(workspace: Workspace) -> Path:
    """The archive of the plugin of kubectl."""
    return program.build(workspace, ["krew"])[0]


@pytest.fixture
def elsewhere(workspace: Workspace, tmp_path: Path) -> Workspace:
    """The same sources, with another folder to build in; what was downloaded is there."""
    build = tmp_path / "elsewhere"
    (build / "dist").mkdir(parents=True)
    for name in ("cache", debian_root.NAME):
        (build / name).symlink_to(workspace.build / name)
    return replace(workspace, build=build)
