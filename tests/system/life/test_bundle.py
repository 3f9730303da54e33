# SPDX-License-Identifier: Apache-2.0
"""Where a bundle is; what is no bundle; and what errors look like in --log."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.system.low_level import CallOutcome, masked

from .pair import COURSES, WITH_A_GPU, WITHOUT_ASKING, Life, RuntimeCase, RuntimePair, in_folder

FORMS = (
    "--bundle {}",
    "--bundle={}",
    "-bundle {}",
    "-bundle={}",
    "-b {}",
    "-b={}",
    "-b{}",
    "--bund {}",
    "--bu={}",
    "-b /nonexistent -b {}",
)


@WITH_A_GPU
def test_every_form_of_the_flag(pair: RuntimePair) -> None:
    """A runtime refuses those that it does not support, and nothing is allocated.

    Without a marker the launcher passes each on, whatever it understood.
    """

    def script(life: Life) -> list[CallOutcome]:
        return [_ran(life, form, first) for form in FORMS for first in (True, False)]

    def _ran(life: Life, form: str, first: bool) -> CallOutcome:
        life.bundle("echo", "here")
        flags = form.format(life.path).split()
        outcome = life.call("run", *([*flags, life.id] if first else [life.id, *flags]))
        if outcome.status == 0 and life.runtime is pair.launched:
            assert life.edited, form
        return outcome

    answers = pair.same(script, made=False)
    assert answers[0] == CallOutcome(0, "here\n", "")


def test_a_relative_bundle_and_pid_file(pair: RuntimePair) -> None:
    cases = (
        ("", "bundle"),
        ("--bundle .", "bundle"),
        ("--bundle bundle", "."),
        ("--bundle ./bundle/../bundle/", "."),
        ("--bundle ../bundle", "bundle/rootfs/.."),
        ("--bundle link", "."),
    )

    def script(life: Life) -> list[CallOutcome]:
        answers = []
        for words, where in cases:
            life.bundle("echo", "here")
            link = life.folder / "link"
            link.unlink(missing_ok=True)
            link.symlink_to("bundle")
            flags = ("--pid-file", "pid.here", *words.split())
            folder = life.folder / where
            answers.append(life.call("run", *flags, life.id, before=in_folder(folder)))
            # crun takes the name in the bundle, runc in the caller's folder.
            [written] = life.folder.rglob("pid.here")
            life.note(str(written), written.read_text().isdigit())
            written.unlink()
            assert life.edited == (life.kind.asks and life.runtime is pair.launched)
        return answers

    assert pair.same(script) == [CallOutcome(0, "here\n", "")] * len(cases)


def _no_config(life: Life) -> None:
    (life.path / "config.json").unlink()


def _empty(life: Life) -> None:
    (life.path / "config.json").write_text("")


def _not_json(life: Life) -> None:
    (life.path / "config.json").write_text("{")


def _without(*path: str) -> Callable[[Life], None]:
    def damage(life: Life) -> None:
        file = life.path / "config.json"
        spec = json.loads(file.read_text())
        inner = spec
        for part in path[:-1]:
            inner = inner[part]
        del inner[path[-1]]
        file.write_text(json.dumps(spec))

    return damage


def _no_root(life: Life) -> None:
    file = life.path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"root": {"path": "nowhere"}}))


def _named(value: RuntimeCase | tuple[str, ...]) -> str:
    return str(value) if isinstance(value, RuntimeCase) else " ".join(value)


DAMAGES = {
    "no config.json": _no_config,
    "empty": _empty,
    "not JSON": _not_json,
    "no process": _without("process"),
    "no args": _without("process", "args"),
    "no cwd": _without("process", "cwd"),
    "no root": _without("root"),
    "no rootfs": _no_root,
    "no namespaces": _without("linux", "namespaces"),
}


#: The format matters where the text is compared, which is where nobody asks.
LOGGED = [
    (each, log)
    for each in COURSES
    for log in ((), ("--log-format", "json"))
    if not log or not each.kind.asks
]


@pytest.mark.parametrize(("course", "log"), LOGGED, indirect=["course"], ids=_named)
def test_the_runtime_reports_a_missing_bundle(pair: RuntimePair, log: tuple[str, ...]) -> None:
    """Also in the file of --log, which engines read the reason from.

    The launcher itself refuses a quota for a bundle without a root: there the status counts.
    """

    def script(life: Life) -> list[int]:
        return [_failed(life, damage) for damage in DAMAGES.values()]

    def _failed(life: Life, damage: Callable[[Life], None]) -> int:
        life.bundle("echo", "here")
        damage(life)
        file = life.folder / "log"
        file.unlink(missing_ok=True)
        words = ("--log", str(file), *log, "run", "--bundle", str(life.path), life.id)
        outcome = life.runtime.call(*words)
        life.traces()
        if not life.kind.asks:
            life.note(outcome, masked(file.read_bytes()) if file.exists() else "")
        return outcome.status

    statuses = pair.same(script, made=False)
    assert all(statuses[:4])


@WITHOUT_ASKING
def test_an_error_in_the_log_is_one_line_of_json(pair: RuntimePair) -> None:
    def script(life: Life) -> dict[str, str]:
        file = life.folder / "log"
        file.unlink(missing_ok=True)
        words = ("--log", str(file), "--log-format", "json", "start", "nobody")
        life.call(*words)
        said: dict[str, str] = json.loads(masked(file.read_bytes()).splitlines()[-1])
        return said

    assert pair.same(script, made=False)["level"] == "error"


def test_unknown_fields_are_kept(pair: RuntimePair) -> None:
    odd: dict[str, Any] = {
        "futureField": {"a": [1, 2.5e3, None, "é\u2028&<"]},
        "annotations": {"x": "&<\u2028"},
    }

    def script(life: Life) -> dict[str, object]:
        assert life.ran("echo", "hi", **odd).stdout == "hi\n"
        spec = json.loads((life.path / "config.json").read_text())
        return {name: spec.get(name) for name in odd}

    assert pair.same(script)["futureField"] == odd["futureField"]
