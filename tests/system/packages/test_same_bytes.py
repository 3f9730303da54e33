# SPDX-License-Identifier: Apache-2.0
"""The same commit gives the same packages, in whichever folder and with whichever umask."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from packages import __main__ as program
from packages import deb, image, krew, rpm
from packages.artifact import Artifact
from packages.wheel import up_to_date
from packages.workspace import Workspace

pytestmark = pytest.mark.needs("package")

#: Of a workspace and a wheel; wheels are in test_wheel.py.
MAKERS: dict[str, Callable[[Workspace, Path], Artifact]] = {
    "deb": lambda workspace, wheel: deb.make_release(workspace, deb.RELEASES[0], wheel),
    "rpm": rpm.make_from,
    "image": image.make_from,
    "krew": lambda workspace, _: krew.make(workspace)[0],
}


@pytest.mark.parametrize("name", MAKERS)
def test_another_folder_and_umask_give_the_same_bytes(
    name: str, workspace: Workspace, elsewhere: Workspace
) -> None:
    built = {path.name: path for path in program.build(workspace, [name])}
    own = up_to_date(workspace, deb.MACHINE)
    umask = os.umask(0o077)
    try:
        again = MAKERS[name](elsewhere, own).path
    finally:
        os.umask(umask)
    assert again.read_bytes() == built[again.name].read_bytes()
