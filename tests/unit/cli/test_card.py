# SPDX-License-Identifier: Apache-2.0
"""`gpushare card`, pause to move, `gpushare queue`, and what the command of an engine requests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gpushare.cli.run import EngineRequest, engine_request, with_ticket
from gpushare.errors import ErrorCode, ExitStatus

from .conftest import CARD, Cli, tenant
from .fake_daemon import AnsweringDaemon, refusal, rows


def test_drain_waits_until_the_last_has_ended(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [rows(tenant("a", 1, 4), tenant("b", 1, 4)), rows(tenant("b", 1, 4)), rows()]
    daemon.answers["tenants"] = left.pop(0)

    def passes(_seconds: float) -> None:
        daemon.answers["tenants"] = left.pop(0)

    monkeypatch.setattr("gpushare.cli.card.time.sleep", passes)
    result = cli("card", "drain", "0", "--wait")
    assert result.exit_code == 0
    assert result.stdout == "card 0 is cordoned and empty\n"
    assert result.stderr == (
        "card 0: waiting for 2 containers: a, b\ncard 0: waiting for 1 container: b\n"
    )


def test_drain_stops_every_tenant_that_it_can(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["tenants"] = rows(tenant("train", 1, 4))
    daemon.answers["stop"] = [{"ok": True, "tenant": tenant("train", 1, 4)}]
    assert cli("card", "drain", "0", "--stop", "--timeout", "3").exit_code == 0
    (stop,) = (one for one in daemon.requests if one["op"] == "stop")
    assert (stop["signal"], stop["timeout"], stop["reason"]) == ("TERM", 3, "draining card 0")
    assert stop["name"] == tenant("train", 1, 4)["key"]
    daemon.answers["stop"] = [{"ok": False, "code": "refused", "error": "it shares its cgroup"}]
    result = cli("card", "drain", "0", "--stop")
    assert result.exit_code == ExitStatus.REFUSED
    assert "it shares its cgroup" in result.stderr
    assert "still on it:" in result.stdout


def test_an_interrupted_wait_leaves_the_card_cordoned_and_says_how_to_undo_it(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["tenants"] = rows(tenant("train", 1, 4))

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpushare.cli.card.time.sleep", interrupted)
    result = cli("card", "drain", "0", "--wait")
    assert result.exit_code == ExitStatus.INTERRUPTED
    assert result.stderr.endswith(
        "card 0 stays cordoned, with 1 container still on it. "
        "To undo this, run: gpushare card uncordon 0\n"
    )
    assert [one["op"] for one in daemon.requests].count("card-uncordon") == 0


@pytest.mark.parametrize("code", [ErrorCode.REFUSED, ErrorCode.FAILED])
def test_a_drain_moves_to_the_next_card_that_takes_it(
    daemon: AnsweringDaemon, cli: Cli, code: ErrorCode
) -> None:
    other = {**CARD, "index": 1, "uuid": "GPU-1"}
    daemon.answers["cards"] = rows({**CARD, "cordoned": True}, other)
    daemon.answers["tenants"] = rows(tenant("train", 1, 4))
    daemon.answers["move"] = refusal(code, "train cannot be moved to card 1: no device node")
    result = cli("card", "drain", "0", "--move")
    assert result.exit_code == code.status
    assert "no device node" in result.output
    assert [one["card"] for one in daemon.requests if one["op"] == "move"] == ["GPU-1"]


def test_a_gpushared_that_restarts_is_waited_for(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["queue-poll"] = refusal(ErrorCode.FAILED, "gpushared failed")

    def answer(_seconds: float) -> None:
        ended = {"state": "ended", "position": 0, "waiting": 0, "since": 0.0}
        daemon.answers["queue-poll"] = [{"ok": True, **ended, "reason": "timed-out"}]

    monkeypatch.setattr(time, "sleep", answer)
    result = cli("run", "--wait=1h", "--memory", "1GiB", "--", "true")
    assert result.exit_code == 124
    first, last = result.stderr.splitlines()
    assert first.endswith("gpushared does not respond; the ticket stays valid")
    assert last == "gpushare: ticket 3f2a8c01: no room was found in time. Nothing was started."


ENGINE = ("docker", "run", "-e", "GPUSHARE_MEMORY=4GiB", "image")


def test_the_container_of_an_engine_gets_what_was_granted(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[tuple[Any, ...]] = []
    monkeypatch.setattr("gpushare.cli.run._execute", lambda *words: executed.append(words))
    granted = {"state": "granted", "position": 0, "waiting": 0, "since": 0.0, "reason": ""}
    daemon.answers["queue-poll"] = [{"ok": True, **granted}]
    assert cli("run", "--wait", "--", *ENGINE).exit_code == 0
    [(words, environment, _)] = executed
    assert words == with_ticket(ENGINE, 2)
    assert environment["GPUSHARE_TICKET"] == "0" * 32
    take = daemon.requests[0]
    assert take["variables"] == {"GPUSHARE_MEMORY": "4GiB"}
    refused = cli("run", "--wait", "--memory", "1GiB", "--", *ENGINE)
    assert refused.exit_code == 125
    assert "Add -e GPUSHARE_MEMORY=1GiB to its options instead." in refused.stderr
    unread = cli("run", "--wait", "--", "docker", "run", "--env-file", "/none", "image")
    assert "--env-file /none: No such file" in unread.stderr


def test_what_could_not_be_bound_is_released(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    grant = {"key": "k", "id": "host-k", "mounts": [], "closed": [], "env": {}}
    daemon.answers["open"] = [{"ok": True, **grant}]
    daemon.answers["bind"] = refusal(ErrorCode.REFUSED, "its process has ended")
    daemon.answers["release"] = [{"ok": True}]
    result = cli("run", "--memory", "1GiB", "--", "true")
    assert (result.exit_code, result.stderr) == (125, "gpushare: its process has ended\n")
    assert [one["op"] for one in daemon.requests] == ["open", "bind", "release"]


def found(*words: str) -> EngineRequest:
    request = engine_request(words)
    assert request is not None
    return request


@pytest.mark.parametrize(
    "words",
    [
        ("docker", "run", "-e", "GPUSHARE_MEMORY=4GiB", "image"),
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


@pytest.mark.parametrize("words", [("docker", "ps"), ("docker", "--debug"), ("true", "run")])
def test_another_command_requests_nothing(words: tuple[str, ...]) -> None:
    assert engine_request(words) is None


def test_files_annotations_and_cards_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "env"
    file.write_text("# comment\nGPUSHARE_CORES=30\n\nPATH=/bin\nGPUSHARE_POLICY\n")
    monkeypatch.setenv("GPUSHARE_POLICY", "burst-share")
    options = f"--env-file {file} --annotation gpushare.io/memory=4GiB --gpus 2 --name train"
    request = found("docker", "run", *options.split(), "image")
    assert request.variables == {"GPUSHARE_CORES": "30", "GPUSHARE_POLICY": "burst-share"}
    assert request.annotations == {"gpushare.io/memory": "4GiB"}
    assert (request.cards, request.name) == ("2", "train")
    cdi = found("podman", "run", "--device", "nvidia.com/gpu=0", "--device=nvidia.com/gpu=1", "i")
    assert cdi.cards == "device=0,1"
    assert found("podman", "run", "--device", "nvidia.com/gpu=all", "i").cards == "all"


def test_the_ticket_s_secret_is_not_among_the_arguments() -> None:
    words = ("docker", "--debug", "run", "--rm", "image", "run")
    given = " ".join(with_ticket(words, found(*words).place))
    assert given == "docker --debug run --env GPUSHARE_TICKET --rm image run"
