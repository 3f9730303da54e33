# SPDX-License-Identifier: Apache-2.0
"""A file of manifests in the words of another system, changed where that has to be."""

from __future__ import annotations

from dataclasses import dataclass

from gpushare.convert.check import check
from gpushare.convert.comments import move_comments
from gpushare.convert.edits import CannotEdit, apply
from gpushare.convert.lines import line_of
from gpushare.convert.said import CannotConvert, Saying
from gpushare.convert.targets import Target
from gpushare.convert.work import Work
from gpushare.manifest import Container, File


@dataclass(frozen=True)
class Converted:
    """What became of a file: its `text`, as it was where nothing had to change."""

    file: File
    target: Target
    text: str
    said: tuple[Saying, ...] = ()
    containers: tuple[Container, ...] = ()  # those that were rewritten

    @property
    def changed(self) -> bool:
        """Whether the text is another."""
        return self.text != self.file.text

    @property
    def lost(self) -> tuple[Saying, ...]:
        """What the target does not say."""
        return tuple(one for one in self.said if one.what == "lost")


def convert(file: File, target: Target) -> Converted:
    """Return `file` in the words of `target`; CannotConvert where a part of it cannot be."""
    work = Work(file, target)
    for twice in file.twice:
        line = twice.key.start_mark.line + 1
        first = twice.first.start_mark.line + 1
        work.reasons.append((line, f"{twice.key.value} is there twice (line {first}); keep one"))
    for document in file.documents:
        work.document(document)
    if work.reasons:
        raise CannotConvert(file, work.reasons)
    comments = move_comments(work)
    try:
        text = apply(work.text, work.edits())
    except CannotEdit as error:
        raise CannotConvert(file, [(line_of(file.text, error.index), str(error))]) from error
    work.say_comments(comments, text)
    made = Converted(
        file,
        target,
        text.removesuffix(work.ending),
        tuple(sorted(work.said, key=lambda one: one.line)),
        tuple(asks.container for asks, _, _ in work.done),
    )
    check(file, made.text, work)
    return made
