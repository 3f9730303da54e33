# SPDX-License-Identifier: Apache-2.0
"""Old versions of the libraries are removed when they are unused, and not before."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.daemon.test_installations import Versions, versions

__all__ = ["versions"]


@contextmanager
def elsewhere(script: str) -> Iterator[None]:
    """Run a shell script in a mount namespace of its own, as far as it says ready."""
    argv = ["unshare", "--mount", "sh", "-euc", f"{script}\necho ready\nread end"]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield
        process.stdin.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts: needs root")
def test_an_installation_that_a_container_has_mounted_stays(
    versions: Versions, tmp_path: Path
) -> None:
    """No program has loaded it yet: one in there may, whenever it likes."""
    inside = tmp_path / "libcuda.so"
    inside.touch()
    with elsewhere(f"mount --bind {versions.oldest.libraries}/libcuda.so.1 {inside}"):
        assert versions.sweep() == []
    assert versions.sweep() == [versions.oldest.root.name]
