# SPDX-License-Identifier: Apache-2.0
"""What each verb answers, and what it leaves on disk."""

from __future__ import annotations

import pytest

from tests.system.low_level import CallOutcome, removed_afterwards

from .pair import CREATED, WITH_A_GPU, WITHOUT_ASKING, Life, RuntimePair, process_of

SLEEP = ("sleep", "1000")


@pytest.mark.gate
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


@CREATED
def test_deleted_by_force_while_it_runs(pair: RuntimePair) -> None:
    def script(life: Life) -> CallOutcome:
        life.started(*SLEEP)
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
