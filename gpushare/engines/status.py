# SPDX-License-Identifier: Apache-2.0
"""How an engine of this machine stands: what its files say, what it says itself, what to do."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpushare.engines import registration
from gpushare.engines.answer import Answer
from gpushare.engines.errors import BadConfiguration, EngineError

if TYPE_CHECKING:
    from gpushare.engines.engine import Engine
    from gpushare.engines.place import Place

Word = Literal["absent", "refused", "unregistered", "broken", "unread", "registered"]


@dataclass(frozen=True)
class Status:
    """One engine. `fix` is a command or a sentence, empty when there is nothing to do.

    `word` is "absent" (no such engine here), "refused" (it cannot be told: `text` says why),
    "unregistered", "broken" (its launcher cannot be run), "unread" (the running engine does not
    know it yet) or "registered".
    """

    engine: str
    word: Word
    text: str
    fix: str = ""
    file: Path | None = None
    launcher: Path | None = None
    current: bool | None = None  # whether it is the installed one
    default: bool = False
    known: bool | None = None  # by the running engine; None: it did not answer
    remarks: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        """Whether containers can have the runtime, as far as is known."""
        return self.word == "registered"


def look(engine: Engine, installed: Path | None, root: Path = Path("/")) -> Status:
    """Return how `engine` stands; `installed` is the launcher that it should have."""
    if not engine.present(root):
        return Status(engine.name, "absent", "not on this machine")
    try:
        place = engine.place(root, None)
        return _registered(engine, place, installed, root)
    except (EngineError, PermissionError) as error:
        return Status(engine.name, "refused", str(error))


def _registered(engine: Engine, place: Place, installed: Path | None, root: Path) -> Status:
    file = place.files[0]
    launcher = registration.registered(file)
    configure = f"gpushare runtime configure --runtime {engine.name}"
    status = Status(
        engine.name, "unregistered", "runtime gpushare not registered", configure, file.path
    )
    if launcher is None:
        left = [other.path for other in place.left if registration.registered(other)]
        told = tuple(f"{path} has it, and is not what {engine.name} goes by" for path in left)
        return replace(status, remarks=told)
    status = replace(
        status,
        launcher=launcher,
        current=None if installed is None else _same(launcher, installed),
        default=_is_default(place),
        remarks=_remarks(place),
    )
    if not os.access(_beneath(root, launcher), os.X_OK):
        return replace(
            status,
            word="broken",
            text=f"{launcher} is not there",
            fix=f"gpushare setup; {configure}",
        )
    if status.current is False:
        status = replace(
            status, remarks=(*status.remarks, f"{launcher} is not the installed {installed}")
        )
    answer = engine.ask(place) if root == Path("/") else Answer(None, why="another root")
    return _answered(status, place, answer, launcher)


def _answered(status: Status, place: Place, answer: Answer, launcher: Path) -> Status:
    other = answer.known and answer.launcher is not None and answer.launcher != launcher
    if answer.known is False or other:
        text = f"runtime gpushare registered, but the running {status.engine} "
        text += f"runs {answer.launcher} for it" if other else "does not know it"
        text += f" ({answer.why})" if answer.why else " yet"
        return replace(status, word="unread", text=text, fix=place.apply, known=False)
    default = status.default if answer.default is None else answer.default
    return replace(
        status,
        word="registered",
        text="runtime gpushare registered",
        fix="",
        known=answer.known,
        default=default,
        remarks=(*status.remarks, *([answer.why] if answer.known is None and answer.why else [])),
    )


def _is_default(place: Place) -> bool:
    file = place.files[0]
    return file.syntax.is_default(file.path.read_text(encoding="utf-8"))


def _remarks(place: Place) -> tuple[str, ...]:
    file = place.files[0]
    try:
        return tuple(file.syntax.remarks(file.path.read_text(encoding="utf-8")))
    except BadConfiguration as error:
        return (str(error),)


def _same(launcher: Path, installed: Path) -> bool:
    return launcher == installed or launcher.resolve() == installed.resolve()


def _beneath(root: Path, path: Path) -> Path:
    return root / path.relative_to("/") if path.is_absolute() else path
