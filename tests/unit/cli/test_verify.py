# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify`: what it asks for of a card that others use, and what stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpushare.cli import verify
from gpushare.errors import UserError
from gpushare.verify import Docker, Sizes

from .conftest import CARD, GIB
from .fake_daemon import FakeDaemon, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    Cli = Callable[..., Result]


@pytest.mark.parametrize(
    ("free_bytes", "cores_free", "sizes"),
    [
        (126 * GIB, 100, Sizes()),
        (126 * GIB, 90, Sizes()),
        (126 * GIB, 70, Sizes(small_cores=23, large_cores=46)),
        (126 * GIB, 0, Sizes(small_cores=0, large_cores=0)),
        (8 * GIB, 100, Sizes(2 * GIB, 4 * GIB, 3 * GIB)),
    ],
)
def test_it_asks_for_what_the_card_has_left(free_bytes: int, cores_free: int, sizes: Sizes) -> None:
    assert verify._sizes(free_bytes, cores_free) == sizes


def test_a_card_too_full_is_said() -> None:
    with pytest.raises(UserError, match="4 GiB free"):
        verify._sizes(3 * GIB, 100)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo cannot connect >&2; exit 1",
            "gpushare: docker image ls --quiet gpushare-probe:latest failed: cannot connect\n",
        ),
        (None, "gpushare: there is no program docker; install it, or see --runtime\n"),
    ],
)
def test_an_engine_that_does_not_answer_is_no_bug(
    cli: Cli,
    daemon: FakeDaemon,
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
