# SPDX-License-Identifier: Apache-2.0
"""Every command reports errors of one class with one exit status, and as JSON with --json.

The commands and their options are those of click's tree, so that none can be forgotten.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import pytest

from gpushare import protocol
from gpushare.cli import gpushare
from gpushare.cli.run import OURS
from gpushare.daemon import __main__ as gpushared
from gpushare.errors import ErrorCode, ExitStatus
from gpushare.exporter import __main__ as exporter
from gpushare.kubernetes import __main__ as node

from .fake_daemon import AnsweringDaemon, DaemonLink, Reply, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from click.testing import Result

    Cli = Callable[..., Result]

#: Valid words for each command; those that do not ask gpushared first change nothing.
WORDS: dict[str, tuple[str, ...]] = {
    "audit": ("--self-test",),
    "card cordon": ("0",),
    "card drain": ("0",),
    "card mig plan": (),
    "card ls": (),
    "card policy": ("0", "burst-share"),
    "card uncordon": ("0",),
    "cdi generate": ("--output", "-"),
    "cdi list": (),
    "compat": ("./image",),
    "completion": ("bash",),
    "config check": (),
    "config reload": (),
    "config schema": (),
    "config show": (),
    "convert": ("pod.yaml", "--to", "gpushare"),
    "dashboard": ("--listen", "unix:relative"),
    "doctor": (),
    "explain": ("memory",),
    "history": ("train",),
    "inspect": ("train",),
    "k8s migrate": ("pod.yaml",),
    "k8s resources": ("--format", "alauda"),
    "ls": (),
    "metrics": (),
    "evict": ("train",),
    "move": ("train", "--card", "1"),
    "pause": ("train",),
    "restore": ("train",),
    "ps": (),
    "resume": ("train",),
    "queue cancel": ("3f2a8c01",),
    "report": ("usage",),
    "rules export": (),
    "run": ("--", "true"),
    "runtime configure": ("--runtime", "docker", "--dry-run", "--launcher", "/bin/true"),
    "runtime status": ("--runtime", "docker"),
    "runtime unconfigure": ("--runtime", "docker", "--dry-run"),
    "set": ("train", "--memory", "6GiB"),
    "setup": ("--dry-run", "--root", "."),
    "simulator create": ("cards",),
    "simulator driver": ("cards/device", "580.1"),
    "simulator fault": ("cards/device", "lost"),
    "simulator mig": ("cards/device",),
    "simulator xid": ("cards/device", "79"),
    "stop": ("train",),
    "top": ("--once",),
    "validate": ("pod.yaml",),
    "verify": (),
    "why": ("train",),
}
#: Commands that change this machine, or that take long, if they do not fail first.
_UNSAFE = {"doctor", "setup", "runtime configure", "runtime status", "runtime unconfigure"}
NEEDS_DAEMON = {
    *("audit", "card cordon", "card drain", "card ls", "card mig plan", "card policy"),
    "card uncordon",
    *("compat", "config reload", "history", "inspect", "ls", "metrics", "pause", "ps"),
    *("queue cancel", "resume"),
    *("run", "set", "stop", "top", "verify", "why", "evict", "restore", "move"),
}
NAMES_CONTAINER = {
    *("inspect", "why", "set", "pause", "resume", "stop", "history"),
    *("evict", "restore", "move"),
}
NAMES_CARD = {"card cordon", "card drain", "card policy", "card uncordon"}
READS_FILE = {
    "compat": ("./none", "--driver", "580.65.06", "--cc", "9.0"),
    "config show": ("--config", "none.yaml"),
    "convert": ("none.yaml", "--to", "gpushare"),
    "explain": ("./none.yaml",),
    "k8s migrate": ("none.yaml",),
    "k8s resources": ("--format", "alauda", "--check", "none.yaml"),
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


def test_every_command_has_words_here() -> None:
    assert set(WORDS) == set(COMMANDS)


@every_command
def test_an_unknown_option(name: str, error_of: RunOutcome) -> None:
    error = error_of.fails(name, "--no-such-option", code=ErrorCode.USAGE)
    assert error["key"] == "--no-such-option"
    assert "--help" in error["fix"]


@pytest.mark.parametrize("group", ["", "card", "cdi", "config", "rules", "runtime", "simulator"])
def test_an_unknown_command(group: str, error_of: RunOutcome) -> None:
    error_of.fails(group, "no-such-command", code=ErrorCode.USAGE)


@every_command
def test_a_missing_argument(name: str, error_of: RunOutcome) -> None:
    if any(parameter.required for parameter in COMMANDS[name].params):
        error = error_of.fails(name, code=ErrorCode.USAGE)
        assert error["key"]
        assert error["value"] is None


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


@every_command
@pytest.mark.parametrize("path", ["", "x" * 108])
def test_a_socket_that_cannot_be(name: str, path: str, error_of: RunOutcome) -> None:
    error = error_of.fails(name, "--socket", path, *WORDS[name], code=ErrorCode.USAGE)
    assert (error["key"], error["value"]) == ("--socket", path)
    result = error_of.cli("--json", "--socket", path, *name.split(), *WORDS[name])
    assert result.exit_code == ExitStatus.USAGE


@every_command
def test_no_daemon(name: str, error_of: RunOutcome) -> None:
    if name in NEEDS_DAEMON:
        error_of.fails(name, *WORDS[name], code=ErrorCode.UNREACHABLE)
    elif name not in _UNSAFE:
        result = error_of.cli("--json", *name.split(), *WORDS[name])
        assert "unreachable" not in result.stderr


REPLIES = [
    (protocol.CODE_REFUSED, ErrorCode.REFUSED),
    (protocol.CODE_FORBIDDEN, ErrorCode.FORBIDDEN),
    (protocol.CODE_INVALID, ErrorCode.USAGE),
    (protocol.CODE_NOT_FOUND, ErrorCode.NOT_FOUND),
    (protocol.CODE_INTERNAL, ErrorCode.FAILED),
]


class RefusingDaemon(dict[str, list[Reply]]):
    """Answers to any request: the same refusal."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code

    def __missing__(self, op: str) -> list[Reply]:
        about = {"key": "--memory", "value": "6GiB", "fix": "Request less."}
        more: dict[str, Any] = {"candidates": ["train-1"]} if self._code == "not-found" else about
        return refusal(self._code, f"{op}: no", **more)


@pytest.mark.parametrize(("reply", "code"), REPLIES)
@pytest.mark.parametrize("name", sorted(NEEDS_DAEMON))
def test_what_the_daemon_refuses(
    name: str, reply: str, code: ErrorCode, error_of: RunOutcome, tmp_path: Path
) -> None:
    with AnsweringDaemon(tmp_path / "control.sock", RefusingDaemon(reply)).answering():
        if name == "compat" and code is ErrorCode.NOT_FOUND:
            return  # then it is an image
        error = error_of.fails(name, *WORDS[name], code=code)
    if code is ErrorCode.REFUSED:
        assert (error["key"], error["fix"]) == ("--memory", "Request less.")
    if code is ErrorCode.NOT_FOUND:
        assert error["fix"] == "Use one of: train-1."


@pytest.mark.parametrize("name", sorted(NAMES_CONTAINER | NAMES_CARD))
def test_a_name_that_is_too_long_for_a_request(
    name: str, error_of: RunOutcome, daemon: AnsweringDaemon
) -> None:
    long = "x" * 5000
    error = error_of.fails(name, long, *WORDS[name][1:], code=ErrorCode.USAGE)
    assert error["value"] == long
    assert "packet" not in error["message"]
    assert daemon.requests == []


@pytest.mark.parametrize("name", READS_FILE)
def test_a_file_that_is_not_there(name: str, error_of: RunOutcome) -> None:
    error_of.fails(name, *READS_FILE[name], code=ErrorCode.NOT_FOUND)


@pytest.mark.parametrize("name", ["explain", "convert"])
def test_an_empty_manifest(name: str, error_of: RunOutcome, tmp_path: Path) -> None:
    (tmp_path / "none.yaml").write_text("")
    error = error_of.fails(name, *READS_FILE[name], code=ErrorCode.INVALID)
    assert "is empty" in error["message"]


def test_without_permission_for_the_socket_it_is_forbidden(
    error_of: RunOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(DaemonLink, "connect", refuse)
    error = error_of.fails("ls", code=ErrorCode.FORBIDDEN)
    assert "use sudo" in error["fix"]


def test_a_bug_is_an_internal_error(error_of: RunOutcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushare.client.Client.cards_and_profiles", lambda _: 1 / 0)
    result = error_of.cli("ls", "--json")
    assert (result.exit_code, json.loads(result.stderr)["error"]["code"]) == (1, "internal")
    monkeypatch.setenv("GPUSHARE_LOG", "debug")
    assert isinstance(error_of.cli("ls").exception, ZeroDivisionError)


def test_ctrl_c_is_an_interruption(error_of: RunOutcome, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpushare.client.Client.cards_and_profiles", interrupted)
    result = error_of.cli("ls", "--json")
    assert result.exit_code == ExitStatus.INTERRUPTED
    assert json.loads(result.stderr.splitlines()[-1])["error"]["code"] == "interrupted"


@pytest.mark.parametrize(
    ("program", "words", "status"),
    [
        (gpushared.main, ["gpushared"], ExitStatus.REFUSED),  # needs root
        (gpushared.main, ["gpushared", "--check", "--config", "none"], ExitStatus.ERROR),
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
