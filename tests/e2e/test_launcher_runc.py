# SPDX-License-Identifier: Apache-2.0
"""The same life as without us: each case runs on bare runc and crun and through the launcher."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.fake_daemon import ACK, DONE, Asked, FakeDaemon, refusal

from .low_level import (
    Outcome,
    Runtime,
    behind_launcher,
    low_level,
    program,
    removed_afterwards,
    write_bundle,
)

SLEEP = ("sleep", "1000")
MARKED: dict[str, Any] = {"annotations": {"gpushare.io/memory": "4GiB"}}


class Pair:
    """Two ways to the same low-level runtime, with the same state directory and container ids."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.socket = folder / "control.sock"
        argv = low_level(name)
        self.bare = Runtime(argv, folder / "state")
        self.launched = Runtime(
            behind_launcher(folder / "bin", argv, self.socket), folder / "state"
        )
        self.id = f"gpushare-{secrets.token_hex(4)}"

    def bundle(self, *command: str, **changes: Any) -> Path:
        return write_bundle(self.folder / "bundle", *command, **changes)

    def both(self) -> Iterator[Runtime]:
        for runtime in (self.bare, self.launched):
            with removed_afterwards(runtime, self.id):
                yield runtime

    def same(self, *words: str, stdin: bytes = b"") -> Outcome:
        """Return the outcome of one call, which both ways must have."""
        bare, launched = (runtime.call(*words, stdin=stdin) for runtime in self.both())
        assert launched == bare
        return launched


@pytest.fixture(params=["runc", "crun"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    return Pair(request.param, tmp_path)


def test_run_passes_stdin_stdout_stderr_and_the_exit_code(pair: Pair) -> None:
    bundle = pair.bundle("sh", "-c", "cat; echo oops >&2; exit 7")
    outcome = pair.same("run", "--bundle", str(bundle), pair.id, stdin=b"hello\n")
    assert outcome == Outcome(7, "hello\n", "oops\n")


def test_the_bundle_defaults_to_the_working_directory(pair: Pair) -> None:
    bundle = pair.bundle("echo", "here")
    before = ("env", "-C", str(bundle))
    outcomes = [runtime.call("run", pair.id, before=before) for runtime in pair.both()]
    assert outcomes == [Outcome(0, "here\n", "")] * 2


def test_a_whole_life_is_the_same(pair: Pair) -> None:
    bundle = pair.bundle(*SLEEP)
    running = (
        ("state", pair.id),
        ("start", pair.id),
        ("start", pair.id),
        ("exec", pair.id, "sh", "-c", "echo in; exit 5"),
        ("ps", "--format", "json", pair.id),
        ("update", "--pids-limit", "50", pair.id),
        ("list", "--quiet"),
        ("delete", pair.id),
        ("kill", pair.id, "KILL"),
    )
    ended = (("exec", pair.id, "echo"), ("delete", pair.id), ("state", pair.id))
    lives = []
    for runtime in pair.both():
        assert runtime.create(bundle, pair.id) == 0
        life = [runtime.call(*words) for words in running]
        runtime.wait_for(pair.id, "stopped")
        lives.append(life + [runtime.call(*words) for words in ended])
    assert lives[1] == lives[0]
    statuses = [outcome.status for outcome in lives[0]]
    assert [bool(status) for status in statuses] == [0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 1]
    assert lives[0][3] == Outcome(5, "in\n", "")


def test_an_id_can_be_used_again(pair: Pair) -> None:
    bundle = pair.bundle("echo", "again")
    for runtime in pair.both():
        for _ in range(2):
            assert runtime.call("run", "--bundle", str(bundle), pair.id).stdout == "again\n"


@pytest.mark.parametrize(
    "words",
    [
        ("state", "create"),
        ("start", "run"),
        ("delete", "create"),
        ("--help",),
        ("--version",),
        ("create", "-h"),
        ("create", "--help"),
        ("create",),
        ("create", "--bundle"),
        ("frobnicate", "create"),
        ("--frobnicate",),
        ("--frobnicate", "create", "x"),
        ("run", "--bundle", "/nonexistent", "x"),
        ("create", "--frobnicate", "x"),
        (),
    ],
    ids=" ".join,
)
def test_calls_that_are_not_ours_are_answered_by_the_runtime(
    pair: Pair, words: tuple[str, ...]
) -> None:
    pair.same(*words)


@pytest.mark.parametrize("command", [("create",), ("echo", "create"), ("echo", "run", "--bundle")])
def test_create_inside_exec_is_not_a_create(pair: Pair, command: tuple[str, ...]) -> None:
    bundle = pair.bundle(*SLEEP, **MARKED)
    with removed_afterwards(pair.bare, pair.id):
        assert pair.bare.create(bundle, pair.id) == 0
        assert pair.bare.call("start", pair.id).status == 0
        words = ("exec", pair.id, *command)
        assert pair.launched.call(*words) == pair.bare.call(*words)


def test_preserved_descriptors_arrive(pair: Pair, tmp_path: Path) -> None:
    bundle = pair.bundle("sh", "-c", "cat <&3; cat <&4")
    (tmp_path / "three").write_text("three\n")
    (tmp_path / "four").write_text("four\n")
    script = f'exec 3<"{tmp_path}/three" 4<"{tmp_path}/four"; exec "$@"'
    before = ("sh", "-c", script, "sh")
    words = ("run", "--preserve-fds", "2", "--bundle", str(bundle), pair.id)
    outcomes = [runtime.call(*words, before=before) for runtime in pair.both()]
    assert outcomes == [Outcome(0, "three\nfour\n", "")] * 2


def test_a_terminal_is_one(pair: Pair) -> None:
    bundle = pair.bundle("sh", "-c", "test -t 0 && test -t 1 && tty", process={"terminal": True})
    words = ("run", "--bundle", str(bundle), pair.id)
    for runtime in pair.both():
        # crun 1.8 on a loaded machine may show what a short program printed as a line of its log.
        status, said = runtime.on_a_terminal(*words)
        assert status == 0
        assert "/dev/pts/" in said


def test_signals_reach_the_container(pair: Pair) -> None:
    bundle = pair.bundle("sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done")
    for runtime in pair.both():
        words = runtime.argv("run", "--bundle", str(bundle), pair.id)
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGTERM)
        assert process.returncode == 9


def test_fields_that_nobody_knows_are_kept(pair: Pair) -> None:
    bundle = pair.bundle("echo", "hi", futureField={"a": [1, 2.5e3, None]}, annotations={"x": "&"})
    before = (bundle / "config.json").read_bytes()
    assert pair.same("run", "--bundle", str(bundle), pair.id).stdout == "hi\n"
    assert (bundle / "config.json").read_bytes() == before


# --- containers that ask, before a daemon that is a stand-in ---


def _edit(asked: Asked, **changes: Any) -> None:
    config = Path(asked.request["bundle"]) / "config.json"
    edited = config.with_name(".config.json.new")
    spec = json.loads(config.read_text())
    spec["process"]["env"].append("GIVEN=a card")
    edited.write_text(json.dumps(spec | changes))
    edited.rename(config)


@pytest.mark.parametrize("verb", ["run", "create"])
def test_what_the_daemon_edits_is_what_starts(pair: Pair, verb: str) -> None:
    bundle = pair.bundle("sh", "-c", "echo $GIVEN >/tmp/given", **MARKED)
    with (
        FakeDaemon(pair.socket, [ACK, DONE], act=_edit) as daemon,
        removed_afterwards(pair.launched, pair.id),
    ):
        if verb == "run":
            assert pair.launched.call("run", "--bundle", str(bundle), pair.id).status == 0
        else:
            assert pair.launched.create(bundle, pair.id) == 0
            assert pair.launched.call("start", pair.id).status == 0
            pair.launched.wait_for(pair.id, "stopped")
    assert (bundle / "rootfs" / "tmp" / "given").read_text() == "a card\n"
    assert daemon.asked[0].fds == [str(bundle), str(bundle / "rootfs")]


@pytest.mark.parametrize("daemon_is_there", [True, False])
def test_a_refused_container_leaves_nothing(pair: Pair, *, daemon_is_there: bool) -> None:
    bundle = pair.bundle("echo", "started", **MARKED)
    if daemon_is_there:
        with FakeDaemon(pair.socket, [ACK, refusal("no card has room")]):
            outcome = pair.launched.call("run", "--bundle", str(bundle), pair.id)
        assert outcome == Outcome(1, "", "gpushare: no card has room\n")
    else:
        outcome = pair.launched.call("run", "--bundle", str(bundle), pair.id)
        assert outcome.status == 1
        assert "systemctl start gpushared" in outcome.stderr
    assert pair.launched.state(pair.id) == {}


def _hooks(socket: Path) -> dict[str, Any]:
    def hook(stage: str) -> list[dict[str, Any]]:
        args = ["gpushare-hook", stage, "--socket", str(socket), "--key", "0011223344556677"]
        environment = {"env": ["PATH=/usr/bin:/bin"], "timeout": 15}
        return [{"path": str(program("gpushare-hook")), "args": args} | environment]

    return {stage: hook(stage) for stage in ("createRuntime", "poststop")}


def test_the_hooks_tell_the_daemon_the_pid_and_the_end(pair: Pair) -> None:
    bundle = pair.bundle(*SLEEP, hooks=_hooks(pair.socket))
    with (
        FakeDaemon(pair.socket, [ACK, DONE]) as daemon,
        removed_afterwards(pair.launched, pair.id),
    ):
        assert pair.launched.create(bundle, pair.id) == 0
        pid = pair.launched.state(pair.id)["pid"]
        assert pair.launched.call("delete", "--force", pair.id).status == 0
    said = {"key": "0011223344556677", "id": pair.id}
    assert [asked.request for asked in daemon.asked] == [
        {"op": "bind", "pid": pid} | said,
        {"op": "release"} | said,
    ]


def test_a_container_that_is_not_bound_does_not_start(pair: Pair) -> None:
    bundle = pair.bundle("echo", "started", hooks=_hooks(pair.socket))
    with FakeDaemon(pair.socket, [ACK, refusal("no reservation")]):
        outcome = pair.launched.call("run", "--bundle", str(bundle), pair.id)
    assert outcome.status != 0
    assert "started" not in outcome.stdout
    assert pair.name == "crun" or "gpushare: no reservation" in outcome.stderr
    assert pair.launched.state(pair.id) == {}
