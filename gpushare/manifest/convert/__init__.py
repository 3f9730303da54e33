# SPDX-License-Identifier: Apache-2.0
"""Rewrite the requests of a manifest in another system's keys, and change nothing else.

`plan` edits YAML and knows nothing of GPUs. `targets` are tables, with what writes a request in a
target's keys, `requests` finds the keys of a request, and `conversion` plans it for a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpushare.manifest import read
from gpushare.manifest.convert.conversion import (
    CannotConvert,
    ConversionNote,
    FileConversion,
    refusal_text,
)
from gpushare.manifest.convert.plan import (
    CannotEdit,
    NewText,
    Quoted,
    RemovedComments,
)
from gpushare.manifest.convert.requests import (
    LocatedKey,
    LocatedRequest,
    differing_fields,
    dropped_fields,
    field_of,
    meaning_of,
    with_cards,
)
from gpushare.manifest.convert.targets import RenderedRequest, Target
from gpushare.manifest.model import Container, ManifestFile
from gpushare.manifest.request import request_of
from gpushare.quota.errors import QuotaError
from gpushare.text_position import KeyPath


@dataclass(frozen=True)
class Converted:
    """A converted file; `text` is unchanged if nothing had to be converted."""

    file: ManifestFile
    target: Target
    text: str
    notes: tuple[ConversionNote, ...] = ()
    containers: tuple[Container, ...] = ()  # those that were rewritten

    @property
    def changed(self) -> bool:
        """Whether the text has changed."""
        return self.text != self.file.text

    @property
    def lost(self) -> tuple[ConversionNote, ...]:
        """The keys that the target does not support."""
        return tuple(note for note in self.notes if note.what == "lost")


def convert(file: ManifestFile, target: Target) -> Converted:
    """Return `file` in the keys of `target`; CannotConvert if a part of it cannot be converted."""
    work = FileConversion(file, target)
    for key, first in file.duplicates:
        why = f"{key.text} is a duplicate of line {first.line}; keep one"
        work.reasons.append((key.line, why))
    for document in file.documents:
        work.document(document)
    if work.reasons:
        raise CannotConvert(file, work.reasons)
    try:
        comments = move_comments(work)
        text = work.apply()
        work.note_comments(comments, text)
    except CannotEdit as error:
        raise CannotConvert(file, [(error.line, str(error))]) from error
    converted = Converted(
        file,
        target,
        text,
        tuple(sorted(work.notes, key=lambda one: one.line)),
        tuple(located.container for located, _, _ in work.rewritten),
    )
    verify(file, converted.text, work)
    return converted


def move_comments(work: FileConversion) -> list[str]:
    """Move the comments of removed keys to the new ones; return all of them."""
    comments: list[str] = []
    takers: dict[int, dict[KeyPath, _Recipient]] = {}  # the first beneath each path
    for located, rendered, new in work.rewritten:
        plan, _, path = work.placed(located.container)
        if new:
            beneath = takers.setdefault(id(plan), {})
            for length in range(len(path) + 1):
                beneath.setdefault(path[:length], _Recipient(located, rendered, new))
    for plan in work.plans.values():
        for path, gone in plan.comments():
            comments += [*gone.above, *gone.behind.values()]
            if id(plan) in takers:
                _move_to(takers[id(plan)], path, gone)
    return comments


class _Recipient(NamedTuple):
    located: LocatedRequest
    rendered: RenderedRequest
    new: list[NewText]


def _move_to(takers: dict[KeyPath, _Recipient], path: KeyPath, gone: RemovedComments) -> None:
    """Move the comments of one collection to its container, or to the pod's first."""
    above_it = (path[:length] for length in range(len(path), -1, -1))
    located, rendered, new = takers[next(one for one in above_it if one in takers)]
    above = list(gone.above)
    for name, comment in gone.behind.items():
        key = next(
            (item for item in (*located.to_convert, *located.own) if item.name == name),
            None,
        )
        if key is None:
            above.append(comment)
            continue
        taker = _replacement(key, rendered, new)
        if taker is not None and _new_text(taker) == key.value.text:
            taker.behind = comment
        else:  # it may be about the number that was
            written_out = f"# {name}: {key.value.text}  {comment}"
            (above if taker is None else taker.above).append(written_out)
    new[0].above += [item for item in above if item not in new[0].above]


def _replacement(key: LocatedKey, rendered: RenderedRequest, new: list[NewText]) -> NewText | None:
    """Return the entry that replaces `key`."""
    names = {entry.name for entry in rendered.written if entry.key == key.key}
    scoped = tuple(f".{name.rpartition('/')[2]}" for name in names)
    return next((entry for entry in new if entry.key in names or entry.key.endswith(scoped)), None)


def _new_text(new: NewText) -> str:
    return new.value.text if isinstance(new.value, Quoted) else str(new.value)


def verify(file: ManifestFile, text: str, work: FileConversion) -> None:
    """Read the new text; CannotConvert if it is another request."""
    again = {_key_of(container): container for container in read(file.path, text).containers}
    done = {id(located.container): rendered for located, rendered, _ in work.rewritten}
    reasons = [
        (before.line, f"{before.name}: {why}")
        for before in file.containers
        for why in _differences(before, again.get(_key_of(before)), done.get(id(before)))
    ]
    if reasons:
        raise CannotConvert(file, reasons)


def _key_of(container: Container) -> tuple[str, KeyPath]:
    return str(container.document), container.place


def _differences(
    before: Container, after: Container | None, rendered: RenderedRequest | None
) -> Iterator[str]:
    """Yield what has changed of a container, except for the keys that `rendered` drops."""
    if after is None:
        yield "it cannot be recognized as a container without its resources; add its image"
        return
    first, now = (with_cards(item, request_of(item, strict=False)) for item in (before, after))
    if rendered is None:
        if {key: item.value for key, item in first.items()} != {
            key: item.value for key, item in now.items()
        }:
            yield "its request would change, because it shares what was converted"
        return
    lost = dropped_fields(item.key for item in rendered.lost)
    try:
        differing = differing_fields(meaning_of(first), meaning_of(now))
    except QuotaError as error:
        yield f"the converted request is refused: {error}"
        return
    for name in differing:
        if name not in lost:
            by = next(
                (f", by {item.source}" for key, item in now.items() if field_of(key) == name),
                "",
            )
            yield f"its {name} would change{by}; remove that key and convert again"
    before_too = {refusal_text(item) for item in request_of(before, strict=True).problems}
    for problem in request_of(after, strict=True).problems:
        if refusal_text(problem) not in before_too:
            yield refusal_text(problem)
