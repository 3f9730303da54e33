# SPDX-License-Identifier: Apache-2.0
"""What `./dev` makes in a fresh clone: a copy of it runs, and pip and debootstrap are stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from packages.debian_root import NAME, DebianRoot
from packages.workspace import Workspace

ROOT = Path(__file__).resolve().parents[3]
DEBOOTSTRAP = """\
#!/bin/sh
for word; do
	case $word in /*) mkdir -p "$word/var/lib/dpkg" && : >"$word/var/lib/dpkg/status" ;; esac
done
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes Debian roots: needs root")


@pytest.fixture
def package(tmp_path: Path) -> Callable[..., Path]:
    """`./dev package` in a fresh clone: the function returns its build folder."""
    shutil.copy(ROOT / "dev", tmp_path)
    (tmp_path / "packaging").mkdir()
    (tmp_path / "packaging/setup").symlink_to(ROOT / "packaging/setup")
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    for name, text in (("python", "#!/bin/sh\n"), ("debootstrap", DEBOOTSTRAP)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def run(*kinds: str) -> Path:
        # As if tests.supervise had started it, which is not in this clone.
        under = os.environ | {"GPUSHARE_DEV": str(os.getpid())}
        command = [str(tmp_path / "dev"), "package", *kinds]
        done = subprocess.run(command, env=under, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return tmp_path / "build"

    return run


@pytest.mark.parametrize("kinds", [(), ("rpm",), ("wheel", "image")])
def test_packages_have_the_root_that_they_are_made_of_and_no_other(
    package: Callable[..., Path], kinds: tuple[str, ...]
) -> None:
    build = package(*kinds)
    assert DebianRoot.of(Workspace(build.parent, build, 0)).path.parent == build
    assert [path.name for path in build.iterdir() if path.is_symlink()] == [NAME]


def test_kinds_that_are_made_of_no_root_need_none(package: Callable[..., Path]) -> None:
    build = package("sdist", "wheel", "deb", "chart", "krew")
    assert not [path for path in build.iterdir() if path.is_symlink()]
