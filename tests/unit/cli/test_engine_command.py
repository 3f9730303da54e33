# SPDX-License-Identifier: Apache-2.0
"""What the command of an engine requests, by its own options."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.cli.run import EngineRequest, engine_request, with_ticket
from gpushare.errors import UserError


def found(*words: str) -> EngineRequest:
    request = engine_request(words)
    assert request is not None
    return request


@pytest.mark.parametrize(
    "words",
    [
        ("docker", "run", "-e", "GPUSHARE_MEMORY=4GiB", "image"),
        ("docker", "run", "--env=GPUSHARE_MEMORY=4GiB", "image"),
        ("docker", "container", "run", "--env", "GPUSHARE_MEMORY=4GiB", "image"),
        ("/usr/bin/docker", "--context", "run", "run", "-eGPUSHARE_MEMORY=4GiB", "image"),
        ("podman", "--log-level=debug", "run", "-it", "--rm", "-ite", "GPUSHARE_MEMORY=4GiB", "i"),
        ("nerdctl", "-D", "run", "-d", "--name", "x", "-e", "GPUSHARE_MEMORY=4GiB", "image"),
        ("docker", "run", "-v", "/a:/b", "-e", "GPUSHARE_MEMORY=4GiB", "i", "-e", "GPUSHARE_X=1"),
        ("docker", "run", "-e", "GPUSHARE_MEMORY=4GiB", "--", "i", "-e", "GPUSHARE_CORES=9"),
    ],
)
def test_variables_are_read_before_the_image(words: tuple[str, ...]) -> None:
    assert found(*words).variables == {"GPUSHARE_MEMORY": "4GiB"}


def test_files_annotations_and_cards_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "env"
    file.write_text("# comment\nGPUSHARE_CORES=30\n\nPATH=/bin\nGPUSHARE_POLICY\n")
    monkeypatch.setenv("GPUSHARE_POLICY", "burst-share")
    request = found(
        *("docker", "run", "--env-file", str(file), "--annotation", "gpushare.io/memory=4GiB"),
        *("--gpus", "2", "--name", "train", "image"),
    )
    assert request.variables == {"GPUSHARE_CORES": "30", "GPUSHARE_POLICY": "burst-share"}
    assert request.annotations == {"gpushare.io/memory": "4GiB"}
    assert (request.cards, request.name) == ("2", "train")
    cdi = found("podman", "run", "--device", "nvidia.com/gpu=0", "--device=nvidia.com/gpu=1", "i")
    assert cdi.cards == "device=0,1"
    assert found("podman", "run", "--device", "nvidia.com/gpu=all", "i").cards == "all"


@pytest.mark.parametrize(
    "words", [("python", "run"), ("docker", "ps"), ("docker", "compose", "run", "x"), ("docker",)]
)
def test_other_commands_are_none_of_an_engine(words: tuple[str, ...]) -> None:
    assert engine_request(words) is None


def test_the_ticket_s_secret_is_not_among_the_arguments() -> None:
    words = ("docker", "--debug", "run", "--rm", "image", "run")
    assert with_ticket(words, found(*words).place) == (
        *("docker", "--debug", "run", "--env", "GPUSHARE_TICKET", "--rm", "image", "run"),
    )


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(UserError, match="--env-file /nowhere: No such file"):
        engine_request(("docker", "run", "--env-file", "/nowhere", "image"))
