# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify`: what it asks for of a card that others use, and what stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpushare.verify import Docker
from tests.unit.cli.conftest import CARD
from tests.unit.cli.fake_daemon import AnsweringDaemon, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    Cli = Callable[..., Result]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo cannot connect >&2; exit 1",
            "gpushare: docker image ls --quiet gpushare-probe:latest failed: cannot connect\n",
        ),
        (None, "gpushare: docker is not installed. Install it, or use another --runtime.\n"),
    ],
)
def test_an_engine_that_does_not_answer_is_no_bug(
    cli: Cli,
    daemon: AnsweringDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    said: str,
) -> None:
    daemon.answers["cards"] = rows(CARD)
    monkeypatch.setattr("gpushare.verify.image.build", lambda _: b"")
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "docker").chmod(0o755)
    result = cli("verify", "--runtime", "docker")
    assert (result.exit_code, result.stderr) == (1, said)


@pytest.mark.parametrize("had", ["", "2f1960326f53"])
def test_an_image_that_was_there_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had: str
) -> None:
    monkeypatch.setattr("gpushare.verify.image.build", lambda _: b"")
    calls = tmp_path / "calls"
    script = f"echo $* >> {calls}; case $2 in ls) printf %s {had};; esac"
    (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "docker").chmod(0o755)
    engine = Docker(env={"PATH": str(tmp_path)})
    engine.prepare(tmp_path)
    engine.finish()
    removed = "image rm --force gpushare-probe:latest" in calls.read_text()
    assert removed is not bool(had)
