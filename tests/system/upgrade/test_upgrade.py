# SPDX-License-Identifier: Apache-2.0
"""gpushared is restarted, and gpushare installed anew, while containers allocate and launch."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.install import Installation, InstallSource, activate, install
from tests.stack import Stack
from tests.system.faults.neighbour import QUOTA_BYTES, working
from tests.system.hostile.container import GIB, RuntimeContainer, RuntimeNamespace

#: The files of the renewed installation that differ.
CHANGED = ("bin/gpushare-runtime", "bin/gpushare-scheduler", "lib/libcuda.so.1")


@pytest.fixture
def place() -> Iterator[RuntimeNamespace]:
    with Stack() as stack:
        made = RuntimeNamespace(stack)
        stack.start_daemon()
        yield made
        made.close()


def renewed(stack: Stack, folder: Path) -> Installation:
    """Install what is as good as another version: the same programs, of other bytes."""
    root = stack.installation.root
    for name in ("bin", "lib"):
        shutil.copytree(root / name, folder / name)
    for name in CHANGED:
        with (folder / name).open("ab") as file:
            file.write(b"\0")
    source = InstallSource(folder / "bin", folder / "lib")
    return install(root.parent, runtime=stack.runtime, socket=stack.socket, source=source)


def maps(container: RuntimeContainer, installation: Installation) -> bool:
    """Whether the container's program has the library of that installation loaded."""
    inode = str((installation.libraries / "libcuda.so.1").stat().st_ino)
    lines = Path(f"/proc/{container.pid()}/maps").read_text().splitlines()
    return any(line.split()[4] == inode for line in lines)


def test_restarts_and_a_renewed_installation_disturb_no_container(
    place: RuntimeNamespace, tmp_path: Path
) -> None:
    stack, before = place.stack, place.stack.installation
    with working(place) as old:
        for number in (signal.SIGKILL, signal.SIGTERM):
            stack.end_daemon(number)
            old.assert_undisturbed()
            stack.start_daemon()
            old.assert_undisturbed()
        after = renewed(stack, tmp_path)
        assert after.root != before.root
        # As `gpushare setup` does: engines and daemon know `current` only.
        stack.installation = activate(after)
        stack.end_daemon(signal.SIGTERM)
        stack.configure(library_dir=str(stack.installation.libraries))
        stack.start_daemon()
        with working(place) as new:
            assert (maps(old.container, before), maps(old.container, after)) == (True, False)
            assert (maps(new.container, before), maps(new.container, after)) == (False, True)
            for each in (old, new):
                each.assert_undisturbed()
            assert place.allocated() == 2 * QUOTA_BYTES
            place.client.set(old.container.id, memory="41GiB")
            assert place.allocated() == 2 * QUOTA_BYTES + GIB
        old.assert_undisturbed()
    place.assert_empty()
