# SPDX-License-Identifier: Apache-2.0
"""The engine for remote GPUs is built from the archive that is pinned, and from no other."""

from __future__ import annotations

from pathlib import Path

import apply
import pytest
import remote_engine


def test_another_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "engine.tar.xz"
    other.write_bytes(b"something else")
    monkeypatch.setenv(remote_engine.VARIABLE, str(other))
    with pytest.raises(apply.StepError, match="its SHA-256 is not"):
        remote_engine.make(tmp_path, tmp_path / "log")
