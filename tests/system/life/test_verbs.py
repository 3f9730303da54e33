# SPDX-License-Identifier: Apache-2.0
"""What each verb answers, and what it leaves on disk."""

from __future__ import annotations

import json
from pathlib import Path

from tests.leftovers import cgroups_named
from tests.system.low_level import CallOutcome, removed_afterwards
from tests.system.waiting import wait_until

from .pair import CREATED, WITH_A_GPU, WITHOUT_ASKING, Life, RuntimePair, in_folder, process_of

SLEEP = ("sleep", "1000")


@CREATED
def test_a_whole_life(pair: RuntimePair) -> None:
    def script(life: Life) -> list[CallOutcome]:
        life.bundle(*SLEEP)
        answers = [life.create()]
        life.traces()
        calls = (
            ("state", life.id),
            ("list", "--quiet"),
            ("start", life.id),
            ("start", life.id),
            ("state", life.id),
            ("ps", "--format", "json", life.id),
            ("delete", life.id),
            ("kill", life.id, "KILL"),
        )
        answers += [life.call(*words) for words in calls]
        life.ended()
        life.traces()
        answers += [life.call(verb, life.id) for verb in ("state", "delete", "state")]
        life.traces()
        return answers

    statuses = [bool(answer.status) for answer in pair.same(script)]
    assert statuses == [False] * 4 + [True] + [False] * 2 + [True] + [False] * 3 + [True]


def test_detached_with_a_pid_file(pair: RuntimePair) -> None:
    def script(life: Life) -> CallOutcome:
        life.bundle("sh", "-c", "echo up; sleep 1000")
        where = ("--bundle", str(life.path), "--pid-file", str(life.pid_file))
        outcome = life.loose("run", "--detach", *where, life.id)
        assert process_of(life.pid_file) == life.runtime.state(life.id)["pid"]
        life.traces()
        life.heard("up\n")
        life.call("delete", "--force", life.id)
        life.traces()
        return outcome

    assert pair.same(script).status == 0


def test_flags_of_run(pair: RuntimePair) -> None:
    flags = ("--no-pivot", "--no-new-keyring", "--no-subreaper", "--keep")

    def script(life: Life) -> list[CallOutcome]:
        answers = []
        for flag in flags:
            life.bundle("echo", "ran")
            answers.append(life.call("run", flag, "--bundle", str(life.path), life.id))
            life.call("state", life.id)
            life.traces()
            life.call("delete", "--force", life.id)
        return answers

    answers = pair.same(script, made=False)
    assert answers[:3] == [CallOutcome(0, "ran\n", "")] * 3


@WITHOUT_ASKING
def test_an_unknown_flag(pair: RuntimePair) -> None:
    """Of a container that asks, we refuse it ourselves: a bundle may be what it means."""

    def script(life: Life) -> int:
        life.bundle("echo", "ran")
        return life.call("run", "--frobnicate", "--bundle", str(life.path), life.id).status

    assert pair.same(script, made=False) != 0


@CREATED
def test_stopped_and_started_under_the_same_id(pair: RuntimePair) -> None:
    def script(life: Life) -> list[str]:
        said = []
        for _ in range(3):
            life.started("echo", "again")
            life.ended()
            said.append(life.said())
            life.call("delete", life.id)
            life.traces()
        return said

    assert pair.same(script) == ["again\n"] * 3


@WITHOUT_ASKING
def test_a_container_that_is_not_there(pair: RuntimePair) -> None:
    verbs = (
        ("delete", "--force"),
        ("delete",),
        ("start",),
        ("kill",),
        ("state",),
        ("pause",),
        ("resume",),
        ("ps",),
        ("events", "--stats"),
        ("exec",),
        ("update", "--pids-limit", "5"),
        ("checkpoint",),
    )

    def script(life: Life) -> None:
        for words in verbs:
            life.call(*words, life.id, *(("echo",) if words == ("exec",) else ()))

    pair.same(script, made=False)


def test_a_stopped_container(pair: RuntimePair) -> None:
    def script(life: Life) -> list[int]:
        life.started("true")
        life.ended()
        statuses = [
            life.call(*words).status
            for words in (
                ("kill", life.id, "TERM"),
                ("kill", "--all", life.id, "TERM"),
                ("exec", life.id, "echo", "in"),
                ("start", life.id),
                ("pause", life.id),
                ("delete", life.id),
            )
        ]
        life.traces()
        return statuses

    statuses = pair.same(script)
    assert statuses[0] != 0
    assert statuses[-1] == 0


@CREATED
def test_deleted_by_force_while_it_runs(pair: RuntimePair) -> None:
    def script(life: Life) -> CallOutcome:
        life.started(*SLEEP)
        outcome = life.call("delete", "--force", life.id)
        life.traces()
        return outcome

    assert pair.same(script).status == 0


@CREATED
def test_created_and_never_started(pair: RuntimePair) -> None:
    def script(life: Life) -> CallOutcome:
        life.bundle(*SLEEP)
        life.create()
        life.call("delete", life.id)
        outcome = life.call("delete", "--force", life.id)
        life.traces()
        return outcome

    assert pair.same(script).status == 0


@CREATED
def test_created_a_second_time(pair: RuntimePair) -> None:
    """Of a container with a quota the daemon says that it runs, before the runtime would."""

    def script(life: Life) -> int:
        life.started(*SLEEP)
        second = life.runtime.create(life.path, life.id)
        life.call("state", life.id)
        life.call("kill", life.id, "KILL")
        life.ended()
        life.call("delete", life.id)
        return second

    assert pair.same(script) != 0


def test_paused_and_resumed(pair: RuntimePair) -> None:
    def script(life: Life) -> list[str]:
        life.started(*SLEEP)
        seen = []
        for verb in ("pause", "pause", "resume", "resume"):
            life.call(verb, life.id)
            seen.append(str(life.runtime.state(life.id)["status"]))
        return seen

    assert pair.same(script) == ["paused", "paused", "running", "running"]


def test_updated(pair: RuntimePair) -> None:
    def limits(life: Life) -> list[str]:
        files = ("pids/{}/pids.max", "{}/pids.max")
        places = [Path("/sys/fs/cgroup", file.format(life.id)) for file in files]
        return [place.read_text().strip() for place in places if place.exists()]

    def script(life: Life) -> list[list[str]]:
        life.started(*SLEEP)
        seen = [limits(life)]
        life.call("update", "--pids-limit", "50", life.id)
        seen.append(limits(life))
        resources = json.dumps({"pids": {"limit": 60}}).encode()
        life.call("update", "--resources", "-", life.id, stdin=resources)
        seen.append(limits(life))
        life.call("update", "--resources", "-", life.id, stdin=b"{")
        return seen

    assert pair.same(script)[1:] == [["50"], ["60"]]


def _command(pid: int) -> list[str]:
    """Return the command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def test_looked_at(pair: RuntimePair) -> None:
    def script(life: Life) -> CallOutcome:
        life.started(*SLEEP)
        # What is started is for a moment runc itself yet.
        wait_until(lambda: _command(process_of(life.pid_file)) == list(SLEEP))
        life.call("list", figures=False)
        life.call("list", "--format", "json")
        life.call("ps", life.id, figures=False)
        life.call("ps", "--format", "json", life.id)
        return life.call("state", life.id)

    assert '"status": "running"' in pair.same(script).stdout


def test_statistics(pair: RuntimePair) -> None:
    """A figure that is nought is left out, so of two runs only the groups are the same."""

    def script(life: Life) -> bool:
        life.started(*SLEEP)
        outcome = life.runtime.call("events", "--stats", life.id)
        groups = sorted(json.loads(outcome.stdout)["data"]) if outcome.status == 0 else outcome
        life.note(groups)
        return outcome.status == 0

    assert pair.same(script) or pair.is_crun  # which has no such verb


@WITHOUT_ASKING
def test_a_checkpoint_is_refused_alike(pair: RuntimePair) -> None:
    """Neither distribution's runtime has criu beside it: what is compared is the refusal."""

    def script(life: Life) -> CallOutcome:
        life.started(*SLEEP)
        image = ("--image-path", str(life.folder / "image"))
        outcome = life.call("checkpoint", *image, life.id)
        life.call("state", life.id)
        return outcome

    assert pair.same(script).status != 0


@WITHOUT_ASKING
def test_restore_without_a_checkpoint(pair: RuntimePair) -> None:
    def script(life: Life) -> CallOutcome:
        life.bundle(*SLEEP)
        for left in cgroups_named(life.id):  # crun 1.21 does, and stumbles over it the next time
            left.rmdir()
        image = ("--image-path", str(life.folder / "none"))
        return life.loose("restore", *image, "--bundle", str(life.path), life.id)

    assert pair.same(script, made=False).status != 0


@WITH_A_GPU
def test_a_container_with_a_gpu_is_neither_dumped_nor_restored(pair: RuntimePair) -> None:
    life = Life(pair.launched, pair.folder, pair.id, pair.kind)
    image = ("--image-path", str(life.folder / "image"))
    with removed_afterwards(life.runtime, life.id):
        life.started(*SLEEP)
        dumped = life.call("checkpoint", *image, life.id)
        assert dumped.status == 1
        assert "uses a GPU, and a checkpoint has no state of the driver" in dumped.stderr
        assert '"status": "running"' in life.runtime.call("state", life.id).stdout
    life.bundle(*SLEEP)
    restored = life.loose("restore", *image, "--bundle", str(life.path), life.id)
    assert restored.status == 1
    assert "requests a GPU, and a checkpoint has no state of the driver" in life.said()


@WITHOUT_ASKING
def test_a_spec_is_written(pair: RuntimePair) -> None:
    def script(life: Life) -> str:
        folder = pair.folder / "spec"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").unlink(missing_ok=True)
        life.call("spec", before=in_folder(folder))
        life.call("spec", before=in_folder(folder))  # there is one by now
        return (folder / "config.json").read_text()

    assert "ociVersion" in pair.same(script, made=False)


WORDS = (
    "",
    "--help",
    "-h",
    "--version",
    "-v",
    "help",
    "features",
    "list",
    "list --format json",
    "list --format xml",
    "create",
    "create -h",
    "create --help",
    "create --bundle",
    "create --frobnicate x",
    "run --help",
    "run --bundle /nonexistent x",
    "state create",
    "start run",
    "delete create",
    "frobnicate",
    "frobnicate create",
    "--frobnicate",
    "--frobnicate create x",
    "--frobnicate create create x",
    "--log-format xml list",
    "--root",
)


@WITHOUT_ASKING
def test_answered_without_a_container(pair: RuntimePair) -> None:
    def script(life: Life) -> list[int]:
        return [life.call(*words.split()).status for words in WORDS]

    statuses = dict(zip(WORDS, pair.same(script, made=False), strict=True))
    assert statuses["--help"] == statuses["--version"] == 0
    assert statuses["frobnicate create"] != 0
