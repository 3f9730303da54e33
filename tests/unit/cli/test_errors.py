# SPDX-License-Identifier: Apache-2.0
"""Every command reports errors of one class with one exit status, and as JSON with --json.

The commands and their options are those of click's tree, so that none can be forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from gpushare.cli import gpushare
from gpushare.cli.run import OURS
from gpushare.daemon import __main__ as gpushared
from gpushare.errors import ErrorCode, ExitStatus
from gpushare.exporter import __main__ as exporter
from gpushare.kubernetes import __main__ as node

from .conftest import Cli
from .fake_daemon import AnsweringDaemon, DaemonLink, Reply, refusal

#: The commands that ask gpushared, with valid words.
DAEMON: dict[str, tuple[str, ...]] = {
    "audit": ("--self-test",),
    "card cordon": ("0",),
    "card drain": ("0",),
    "card ls": (),
    "card policy": ("0", "burst-share"),
    "card uncordon": ("0",),
    "compat": ("./image",),
    "config reload": (),
    "metrics": (),
    "move": ("train", "--card", "1"),
    "queue cancel": ("3f2a8c01",),
    "run": ("--", "true"),
    "set": ("train", "--memory", "6GiB"),
    "top": ("--once",),
    "verify": (),
    **dict.fromkeys(("ls", "ps"), ()),
    **dict.fromkeys(
        ("evict", "history", "inspect", "pause", "restore", "resume", "stop", "why"), ("train",)
    ),
}
daemon_command = pytest.mark.parametrize("name", DAEMON)
READS_FILE = {
    "config show": ("--config", "none.yaml"),
    "convert": ("none.yaml", "--to", "gpushare"),
    "explain": ("./none.yaml",),
    "simulator driver": ("none", "580.1"),
    "simulator fault": ("none", "lost"),
    "simulator mig": ("none", "1g.18gb"),
    "simulator xid": ("none", "79"),
}


def tree(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield each command that has no commands beneath it, by its words."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from tree(below, (*path, name))


COMMANDS = dict(tree(gpushare))
every_command = pytest.mark.parametrize("name", COMMANDS)


@dataclass(frozen=True)
class RunOutcome:
    """What is true of each error of a command; see `fails`."""

    cli: Cli

    def fails(self, name: str, *words: str, code: ErrorCode) -> dict[str, Any]:
        """Run a command that must fail, as text and as JSON; return the JSON object."""
        status = OURS if name == "run" else code.status
        called = (*name.split(), *words)
        text = self.cli(*called)
        assert (text.exit_code, "internal error" in text.stderr) == (status, False), text.output
        assert text.stderr.strip()
        result = self.cli("--json", *called)
        assert result.exit_code == status, result.output
        [line] = result.stderr.splitlines()
        found = json.loads(line)
        assert list(found) == ["error"]
        assert list(found["error"]) == ["code", "message", "key", "value", "fix"]
        assert found["error"]["code"] == code.text
        assert found["error"]["message"]
        return dict(found["error"])


@pytest.fixture
def error_of(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunOutcome:
    """Run commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return RunOutcome(cli)


@every_command
def test_an_unknown_option(name: str, error_of: RunOutcome) -> None:
    error = error_of.fails(name, "--no-such-option", code=ErrorCode.USAGE)
    assert error["key"] == "--no-such-option"
    assert "--help" in error["fix"]


@every_command
def test_a_bad_value_of_any_option(name: str, error_of: RunOutcome) -> None:
    for option in COMMANDS[name].params:
        free = isinstance(option.type, click.Path | type(click.STRING))
        if option.name in {"driver", "cuda", "cc", "since"}:
            free = option.callback is None
        free |= name == "run" and option.opts[0] in {"--allow", "--deny"}  # any model
        if isinstance(option, click.Option) and not option.is_flag and not free:
            error = error_of.fails(name, option.opts[-1], "@bad@", code=ErrorCode.USAGE)
            assert (error["key"], error["value"]) == (option.opts[0], "@bad@")


@daemon_command
@pytest.mark.parametrize("path", ["", "x" * 108])
def test_a_socket_that_cannot_be(name: str, path: str, error_of: RunOutcome) -> None:
    error = error_of.fails(name, "--socket", path, *DAEMON[name], code=ErrorCode.USAGE)
    assert (error["key"], error["value"]) == ("--socket", path)
    result = error_of.cli("--json", "--socket", path, *name.split(), *DAEMON[name])
    assert result.exit_code == ExitStatus.USAGE


@daemon_command
def test_no_daemon(name: str, error_of: RunOutcome) -> None:
    error_of.fails(name, *DAEMON[name], code=ErrorCode.UNREACHABLE)


OURS_ALONE = {ErrorCode.UNREACHABLE, ErrorCode.INTERRUPTED}  # gpushared answers with all others
ANSWERED = [code for code in ErrorCode if code not in OURS_ALONE]


class RefusingDaemon(dict[str, list[Reply]]):
    """Answers to any request: the same refusal."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__()
        self._code = code

    def __missing__(self, op: str) -> list[Reply]:
        about = {"key": "--memory", "value": "6GiB", "fix": "Request less."}
        more: dict[str, Any] = (
            {"candidates": ["train-1"]} if self._code is ErrorCode.NOT_FOUND else about
        )
        return refusal(self._code, f"{op}: no", **more)


@pytest.mark.parametrize("code", ANSWERED)
@daemon_command
def test_what_the_daemon_refuses(
    name: str, code: ErrorCode, error_of: RunOutcome, tmp_path: Path
) -> None:
    with AnsweringDaemon(tmp_path / "control.sock", RefusingDaemon(code)).answering():
        if name == "compat" and code is ErrorCode.NOT_FOUND:
            return  # then it is an image
        error = error_of.fails(name, *DAEMON[name], code=code)
    if code is ErrorCode.REFUSED:
        assert (error["key"], error["fix"]) == ("--memory", "Request less.")
    if code is ErrorCode.NOT_FOUND:
        assert error["fix"] == "Use one of: train-1."


@pytest.mark.parametrize("name", READS_FILE)
def test_a_file_that_is_not_there(name: str, error_of: RunOutcome) -> None:
    error_of.fails(name, *READS_FILE[name], code=ErrorCode.NOT_FOUND)


def test_without_permission_for_the_socket_it_is_forbidden(
    error_of: RunOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(DaemonLink, "connect", refuse)
    error = error_of.fails("ls", code=ErrorCode.FORBIDDEN)
    assert "use sudo" in error["fix"]


def test_a_bug_is_an_internal_error(error_of: RunOutcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushare.client.Client.cards", lambda _: 1 / 0)
    result = error_of.cli("ls", "--json")
    assert (result.exit_code, json.loads(result.stderr)["error"]["code"]) == (1, "internal")
    monkeypatch.setenv("GPUSHARE_LOG", "debug")
    assert isinstance(error_of.cli("ls").exception, ZeroDivisionError)


def test_ctrl_c_is_an_interruption(error_of: RunOutcome, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpushare.client.Client.cards", interrupted)
    result = error_of.cli("ls", "--json")
    assert result.exit_code == ExitStatus.INTERRUPTED
    assert json.loads(result.stderr.splitlines()[-1])["error"]["code"] == "interrupted"


@pytest.mark.parametrize(
    ("program", "words", "status"),
    [
        (gpushared.main, ["gpushared"], ExitStatus.REFUSED),  # needs root
        (gpushared.main, ["gpushared", "--config", "none"], ExitStatus.ERROR),
        (gpushared.main, ["gpushared", "--none"], ExitStatus.USAGE),
        (exporter.main, ["gpushare-exporter", "--listen", "0.0.0.0:0"], ExitStatus.USAGE),
        (exporter.main, ["gpushare-exporter", "--token-file", "none"], ExitStatus.ERROR),
        (node.main, ["gpushare-node", "--remove", "--kubeconfig", "none"], ExitStatus.ERROR),
    ],
)
def test_services_that_cannot_start_have_the_same_statuses(
    program: Callable[[], None],
    words: list[str],
    status: ExitStatus,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setattr("signal.pthread_sigmask", lambda *_: None)  # of this process
    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == status
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{words[0]}: ")
