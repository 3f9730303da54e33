# SPDX-License-Identifier: Apache-2.0
"""The message to a user when an engine's command fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.verify.runners import Containerd, Docker, EngineFailed


def command(folder: Path, name: str, said: str) -> dict[str, str]:
    """Return an environment whose command `name` fails with `said`."""
    (folder / name).write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def test_a_missing_containerd_is_reported_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "ctr: failed to dial /run/containerd/containerd.sock: context deadline exceeded"
    env = command(tmp_path, "ctr", said)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(EngineFailed) as failure:
        Containerd(Path("/launcher"), env).prepare(Path("/probe"))
    assert str(failure.value) == (
        f"ctr cannot reach its daemon ({said}). Start it, or use another --runtime."
    )


def test_any_other_failure_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = command(tmp_path, "docker", "no space left on device")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(EngineFailed, match=r"^docker image ls .* failed: no space left on device$"):
        Docker(env=env).prepare(Path("/probe"))
