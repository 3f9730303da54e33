# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest

from gpushare import protocol, wait_policy

from .fake_daemon import (
    ACK,
    DONE,
    START,
    STARTING,
    Packet,
    ReceivedRequest,
    ScriptedDaemon,
    refusal,
)
from .spec import Spec, bundle, go, plain, privileged, with_annotation, with_device, with_env

EXECUTED = 42  # the witness's exit status: the low-level runtime ran
REFUSED = 1

STRONG = with_annotation("gpushare.io/memory", "4GiB")
WEAK = with_env("NVIDIA_VISIBLE_DEVICES=all")


class Ran(NamedTuple):
    status: int
    said: str
    seen: list[str]  # what the witness printed

    def values(self, name: str) -> list[str]:
        return [v.removeprefix(f"{name}=") for v in self.seen if v.startswith(f"{name}=")]


class LauncherBundle:
    """A launcher with its configuration beside it, and a bundle."""

    def __init__(self, root: Path, launcher: Path, witness: Path) -> None:
        self.launcher = Path(shutil.copy(launcher, root / "gpushare-runtime"))
        self.witness = Path(shutil.copy(witness, root / "runc"))
        self.socket = root / "control.sock"
        self.bundle = root / "bundle"
        self.log = root / "log.json"
        self.conf = root / "gpushare-runtime.conf"
        self.configure(f"# ours\n\nruntime = {self.witness}\nsocket={self.socket}\n")

    def configure(self, text: str) -> None:
        self.conf.write_text(text)
        self.conf.chmod(0o644)

    def run(self, *words: str, pass_fds: Sequence[int] = ()) -> Ran:
        done = subprocess.run(
            ["gpushare", *words],
            executable=self.launcher,
            cwd=self.bundle if self.bundle.exists() else self.launcher.parent,
            env={"ONE": "1", "EMPTY": "", "LISTEN_FDS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=pass_fds,
            check=False,
        )
        return Ran(done.returncode, done.stderr.decode(), done.stdout.decode().split("\0")[:-1])

    def create(self, spec: Spec | None = None, *flags: str, verb: str = "create") -> Ran:
        if spec is not None:
            bundle(self.bundle, spec)
        logged = ["--log", str(self.log), "--log-format", "json"]
        return self.run(*logged, verb, *flags, "--bundle", str(self.bundle), "ID")


@pytest.fixture
def place(tmp_path: Path, launcher: Path, witness: Path) -> LauncherBundle:
    return LauncherBundle(tmp_path, launcher, witness)


# --- passing through ---


def test_argv_environment_directory_and_descriptors_arrive_untouched(place: LauncherBundle) -> None:
    bundle(place.bundle, plain())
    with place.conf.open() as other:
        passed = fcntl.fcntl(other, fcntl.F_DUPFD_CLOEXEC, 200)  # of a caller with many files
    ran = place.run("--debug", "run", "-d", "", "ID", "\n", pass_fds=[passed])
    os.close(passed)
    assert ran.status == EXECUTED
    # argv[0] is the low-level runtime's own path: its usage text names the program it is.
    assert ran.values("argv") == [str(place.witness), "--debug", "run", "-d", "", "ID", "\n"]
    assert ran.values("env") == ["ONE=1", "EMPTY=", "LISTEN_FDS=1"]
    assert ran.values("cwd") == [str(place.bundle)]
    assert [fd.split()[0] for fd in ran.values("fd")] == ["0", "1", "2", str(passed)]
    assert ran.said == ""


@pytest.mark.parametrize(
    "line",
    ["exec ID create", "--help", "frobnicate --new", "--new-flag x delete ID"],
)
def test_other_calls_pass_even_in_a_marked_bundle(place: LauncherBundle, line: str) -> None:
    bundle(place.bundle, STRONG)
    words = line.split()
    with ScriptedDaemon(place.socket, [ACK, DONE]) as daemon:
        ran = place.run(*words)
    assert (ran.status, ran.values("argv")[1:], daemon.connections) == (EXECUTED, words, 0)


def test_a_container_with_no_marker_starts_without_a_daemon(place: LauncherBundle) -> None:
    ran = place.create(plain())
    assert (ran.status, ran.said) == (EXECUTED, "")


# --- asking ---


@pytest.mark.parametrize("verb", ["create", "run", "restore"])
def test_a_marked_container_is_sent_to_the_daemon(place: LauncherBundle, verb: str) -> None:
    with ScriptedDaemon(place.socket, [ACK, DONE]) as daemon:
        assert place.create(STRONG, verb=verb).status == EXECUTED
    (asked,) = daemon.asked
    assert asked.request == {
        "op": "create",
        "id": "ID",
        "bundle": str(place.bundle),
        "verb": verb,
        "marker": "strong",
        # Of the others the caller expects to be the low-level runtime's parent.
        **({"bind": "launcher"} if verb == "create" else {}),
    }
    assert asked.fds == [str(place.bundle), str(place.bundle / "rootfs")]
    assert not asked.flags[0] & os.O_PATH
    assert asked.flags[1] & os.O_PATH


# --- checkpoints ---


def test_the_checkpoint_of_a_container_with_a_gpu_is_refused_in_a_line(
    place: LauncherBundle,
) -> None:
    with ScriptedDaemon(place.socket, [ACK, refusal("container train uses a GPU")]) as daemon:
        ran = place.run("checkpoint", "--image-path", "/image", "ID")
    assert (ran.status, ran.seen) == (REFUSED, [])
    assert ran.said.endswith("container train uses a GPU\n")
    assert daemon.asked[0].request == {"op": "checkpoint", "id": "ID"}


@pytest.mark.parametrize("answer", [DONE, refusal("what is that", code="invalid"), None])
def test_any_other_checkpoint_is_the_runtimes(place: LauncherBundle, answer: bytes | None) -> None:
    """Also where the daemon does not know the request, or there is none."""
    words = ["checkpoint", "--leave-running", "ID"]
    with ScriptedDaemon(place.socket, [ACK, answer]) if answer else nullcontext():
        ran = place.run(*words)
    assert (ran.status, ran.values("argv")[1:], ran.said) == (EXECUTED, words, "")


def test_the_bundle_is_named_by_its_one_absolute_path(
    place: LauncherBundle, tmp_path: Path
) -> None:
    bundle(place.bundle, STRONG)
    (tmp_path / "link").symlink_to(place.bundle)
    with ScriptedDaemon(place.socket, [ACK, DONE]) as daemon:
        place.run("run", "ID")
        place.run("run", "--bundle", "../link/.", "ID")
    assert [asked.request["bundle"] for asked in daemon.asked] == [str(place.bundle)] * 2


def test_a_path_and_an_id_of_any_bytes_make_a_proper_request(place: LauncherBundle) -> None:
    place.bundle = place.bundle.with_name('a "b"\n\\\u00fc')
    bundle(place.bundle, STRONG)
    with ScriptedDaemon(place.socket, [ACK, DONE]) as daemon:
        place.run("run", "--bundle", str(place.bundle), "--", '-"}{\t')
    assert daemon.asked[0].request["bundle"] == str(place.bundle)
    assert daemon.asked[0].request["id"] == '-"}{\t'


# --- being refused ---


def test_a_refusal_is_shown_whole_on_stderr_and_in_the_log(place: LauncherBundle) -> None:
    why = "annotation gpushare.io/memory=4Q: not a size. Write e.g. 4GiB." + " \u00fc" * 3000
    with ScriptedDaemon(place.socket, [ACK, refusal(why)]):
        ran = place.create(STRONG)
    assert (ran.status, ran.seen) == (REFUSED, [])
    assert ran.said == f"gpushare: {why}\n"
    (line,) = place.log.read_text().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["msg"]) == ("error", f"gpushare: {why}")
    assert set(entry) == {"level", "msg", "time"}


def test_a_tenants_text_moves_no_cursor(place: LauncherBundle) -> None:
    with ScriptedDaemon(place.socket, [ACK, refusal("\x1b[2J\rnothing wrong\x7f")]):
        ran = place.create(STRONG)
    assert ran.said == "gpushare: ?[2J?nothing wrong?\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("refused", REFUSED),
        ("not-found", REFUSED),  # a card
        ("forbidden", EXECUTED),
        ("failed", EXECUTED),
    ],
)
def test_an_images_request_is_refused_only_where_it_is_a_quota(
    place: LauncherBundle, code: str, status: int
) -> None:
    with ScriptedDaemon(place.socket, [ACK, refusal("no", code)]):
        assert place.create(WEAK).status == status
    place.socket.unlink()
    with ScriptedDaemon(place.socket, [ACK, refusal("no", code)]):
        assert place.create(STRONG).status == REFUSED


# --- a daemon that cannot be asked ---


def _says_what_to_do(ran: Ran) -> bool:
    named = 'this container requests a GPU (annotation "gpushare.io/memory")' in ran.said
    return named and START in ran.said and "gpushare doctor" in ran.said


def test_without_a_daemon_a_request_is_refused_with_advice(place: LauncherBundle) -> None:
    ran = place.create(STRONG)
    assert (ran.status, ran.seen) == (REFUSED, [])
    assert _says_what_to_do(ran)
    assert f"does not answer on {place.socket} (No such file or directory)" in ran.said
    assert len(ran.said.splitlines()) == 1
    assert json.loads(place.log.read_text())["msg"] == ran.said.strip()


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        (WEAK, EXECUTED),
        (with_device("/dev/nvidia0"), REFUSED),
        # gpushared's own pod may be one: it has the host's nodes, and must not wait for itself.
        (privileged(with_device("/dev/nvidia0")), EXECUTED),
    ],
)
def test_without_a_daemon_only_a_gpu_that_is_there_already_is_refused(
    place: LauncherBundle, spec: Spec, status: int
) -> None:
    ran = place.create(spec)
    assert ran.status == status
    assert bool(ran.said) == (status == REFUSED)


# --- a daemon that is being started ---


def _longer_than_a_living_daemon_has() -> None:
    time.sleep(1.2 * protocol.ACK_SECONDS)


@pytest.mark.parametrize("spec", [STRONG, WEAK])
def test_a_locked_socket_without_a_daemon_means_a_starting_one(
    place: LauncherBundle, spec: Spec
) -> None:
    """As systemd does: a container's GPU does not depend on the order at boot."""

    def start(_: ReceivedRequest) -> None:
        _longer_than_a_living_daemon_has()
        daemon.take_lock()

    daemon = ScriptedDaemon(place.socket, [ACK, DONE], alive=False, act=start)
    with daemon:
        ran = place.create(spec)
    assert (ran.status, ran.said, len(daemon.asked)) == (EXECUTED, "", 1)


@pytest.mark.parametrize(
    "first",
    [
        [],
        [STARTING],
        [ACK],
        [STARTING, ACK],
        # As long as a queue is. A daemon that was killed has its lock a moment longer.
        [ACK, _longer_than_a_living_daemon_has],
    ],
)
def test_a_request_that_ends_the_daemon_is_repeated_once(
    place: LauncherBundle, first: list[Packet]
) -> None:
    """The same request is sent again; the daemon begins anew with it."""
    with ScriptedDaemon(place.socket, [ACK, DONE], first=first) as daemon:
        ran = place.create(STRONG)
    assert (ran.status, ran.said) == (EXECUTED, "")
    assert daemon.asked[0] == daemon.asked[1]
    assert len(daemon.asked) == 2


def test_a_request_that_ends_the_daemon_twice_is_not_repeated_again(place: LauncherBundle) -> None:
    with ScriptedDaemon(place.socket, [ACK]) as daemon:
        assert place.create(STRONG).status == REFUSED
    assert len(daemon.asked) == 2


@pytest.mark.parametrize(("spec", "status"), [(STRONG, REFUSED), (WEAK, EXECUTED)])
def test_a_daemon_that_does_not_acknowledge_is_given_up(
    place: LauncherBundle, spec: Spec, status: int
) -> None:
    with ScriptedDaemon(place.socket, [], silent=True) as daemon:
        ran = place.create(spec)
    assert (ran.status, len(daemon.asked)) == (status, 1)
    assert status == EXECUTED or "did not acknowledge" in ran.said
    # In its queue they would keep the container's root busy, after the launcher has ended too.
    assert daemon.asked[0].fds == []


def test_a_daemon_that_serves_other_clients_is_waited_for(place: LauncherBundle) -> None:
    with ScriptedDaemon(place.socket, [ACK, DONE]) as daemon:
        daemon.serve_others_first()
        ran = place.create(STRONG)
    assert (ran.status, ran.said, len(daemon.asked)) == (EXECUTED, "", 1)


def test_a_killed_daemon_is_waited_for(place: LauncherBundle) -> None:
    """It leaves its socket and its lock's file; its service manager starts the next one."""
    lock = place.socket.with_name(wait_policy.LOCK)
    lock.touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left_over:
        left_over.bind(str(place.socket))
    started: list[ScriptedDaemon] = []

    def start() -> None:
        place.socket.unlink()
        started.append(ScriptedDaemon(place.socket, [ACK, DONE]).__enter__())

    timer = threading.Timer(1.2 * protocol.ACK_SECONDS, start)
    timer.start()
    ran = place.create(STRONG)
    timer.join()
    started[0].__exit__(None, None, None)
    assert (ran.status, ran.said, len(started[0].asked)) == (EXECUTED, "", 1)


@pytest.mark.parametrize(
    ("packets", "said"),
    [
        ([], "did not acknowledge the request: closed the connection"),
        ([ACK], "accepted the request, then closed the connection"),
        ([ACK, b""], "accepted the request, then closed the connection"),
        ([ACK, b'{"ok": tr'], "sent an invalid response"),
        ([ACK, b'{"ok": true} x'], "sent an invalid response"),
        ([ACK, b'{"ok": false}'], "sent an invalid response"),
        ([ACK, b'{"ok": false, "error": 1}'], "sent an invalid response"),
        ([ACK, b'{"ok": false, "error": "a\\u0000b"}'], "sent an invalid response"),
        ([b'{"ack": false}'], "sent an invalid response"),
        ([b"[" * 60000], "sent an invalid response"),
        ([ACK, b'{"ok": true, "x": "' + b"x" * 65536 + b'"}'], os.strerror(90)),
    ],
)
def test_an_answer_that_is_none_is_no_consent(
    place: LauncherBundle, packets: list[bytes], said: str
) -> None:
    with ScriptedDaemon(place.socket, packets):
        ran = place.create(STRONG)
    assert (ran.status, ran.seen) == (REFUSED, [])
    assert said in ran.said
    assert _says_what_to_do(ran)


# --- a config.json that cannot be judged ---


def test_a_config_over_four_mebibytes_is_refused(place: LauncherBundle) -> None:
    ran = place.create(with_env("PADDING=" + "x" * (4 << 20)))
    assert ran.status == REFUSED
    assert "config.json is larger than 4 MiB" in ran.said


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ('"annotations":{', 'config.json contains the key "annotations" twice'),
        ('"annotations":{]', "is not valid JSON at byte"),
    ],
)
def test_a_damaged_config_with_a_request_is_refused(
    place: LauncherBundle, damage: str, said: str
) -> None:
    text = go(STRONG).decode().replace('"annotations":{', '"annotations":{},' + damage, 1)
    (bundle(place.bundle, STRONG) / "config.json").write_text(text)
    with ScriptedDaemon(place.socket, [ACK, DONE]) as daemon:
        ran = place.create()
    assert (ran.status, daemon.connections) == (REFUSED, 0)
    assert said in ran.said


def test_a_damaged_config_of_others_is_the_runtimes_to_report(place: LauncherBundle) -> None:
    bundle(place.bundle, plain())
    (place.bundle / "config.json").write_text('{"process": nonsense')
    assert place.create().status == EXECUTED


def test_a_linked_config_is_refused_only_with_a_request(
    place: LauncherBundle, tmp_path: Path
) -> None:
    for spec, status in ((STRONG, REFUSED), (plain(), EXECUTED)):
        bundle(place.bundle, spec)
        (place.bundle / "config.json").rename(tmp_path / "moved")
        (place.bundle / "config.json").symlink_to(tmp_path / "moved")
        ran = place.create()
        assert ran.status == status
        assert status == EXECUTED or "config.json is a symbolic link" in ran.said
        (place.bundle / "config.json").unlink()


def test_a_config_that_is_a_pipe_is_refused_at_once(place: LauncherBundle) -> None:
    place.bundle.mkdir()
    os.mkfifo(place.bundle / "config.json")
    assert place.create().status == REFUSED


@pytest.mark.parametrize(
    "root", [{}, {"path": "nowhere"}, {"path": "config.json"}, {"path": "a\0"}]
)
def test_a_request_without_a_root_file_system_is_refused(place: LauncherBundle, root: Spec) -> None:
    with ScriptedDaemon(place.socket, [ACK, DONE]) as daemon:
        ran = place.create(STRONG | {"root": root})
    assert (ran.status, daemon.connections) == (REFUSED, 0)
    assert "root.path" in ran.said


@pytest.mark.parametrize("flags", [["--new-flag", "create"], ["create", "--new-flag", "x"]])
def test_a_request_beside_an_unknown_flag_is_refused(
    place: LauncherBundle, flags: list[str]
) -> None:
    for spec, status in ((STRONG, REFUSED), (WEAK, EXECUTED), (plain(), EXECUTED)):
        bundle(place.bundle, spec)
        ran = place.run(*flags, "--bundle", str(place.bundle), "ID")
        assert ran.status == status
        assert status == EXECUTED or "gpushare does not know the flag --new-flag" in ran.said


# --- the launcher's own configuration ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runtime\n", "has a line without '='"),
        ("runtimes = /usr/bin/runc\n", 'has an unknown key "runtimes"'),
        ("runtime = runc\n", 'requires an absolute path for "runtime"'),
        ("socket =\n", 'requires an absolute path for "socket"'),
        ("socket = /" + "x" * 5000 + "\n", 'requires an absolute path for "socket"'),
        ("#" * 20000, "is longer than 16 KiB"),
    ],
)
def test_a_broken_configuration_is_named_in_the_refusal_of_a_request(
    place: LauncherBundle, text: str, said: str
) -> None:
    place.configure(text)
    ran = place.create(STRONG)
    assert ran.status == REFUSED
    assert f"{place.conf} {said}" in ran.said
    assert "gpushare setup" in ran.said


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_configuration_that_others_may_write_runs_nothing(
    place: LauncherBundle, mode: int
) -> None:
    place.conf.chmod(mode)
    ran = place.create(STRONG)
    assert (ran.status, ran.seen) == (REFUSED, [])
    assert "is writable by others" in ran.said


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user: needs root")
def test_a_configuration_of_another_user_runs_nothing(place: LauncherBundle) -> None:
    os.chown(place.conf, 12345, 12345)
    assert "belongs neither to root nor to you" in place.create(STRONG).said
    os.chown(place.launcher, 12345, 12345)  # its owner may be the configuration's
    assert "does not answer on" in place.create(STRONG).said
