# SPDX-License-Identifier: Apache-2.0
"""What was written, read as its readers will: it must be the same request."""

from __future__ import annotations

from gpushare.convert import same
from gpushare.convert.said import CannotConvert
from gpushare.convert.work import Work, told
from gpushare.manifest import File, read
from gpushare.manifest.request import request_of
from gpushare.quota import QuotaError


def check(file: File, text: str, work: Work) -> None:
    """Read what was written as its readers will; CannotConvert where it is another request."""
    again = read(file.path, text)
    reasons: list[tuple[int, str]] = []
    done = {id(asks.container): said for asks, said, _ in work.done}
    for before, after in zip(file.containers, again.containers, strict=True):
        asked = request_of(before, strict=False).asked
        now = request_of(after, strict=False)
        if id(before) not in done:
            if {key: one.value for key, one in asked.items()} != {
                key: one.value for key, one in now.asked.items()
            }:
                reasons.append((before.line, f"{before.name} would ask for something else"))
            continue
        lost = {same.field_of(one.key) for one in done[id(before)].lost}
        try:
            differing = same.differing(same.meaning(asked), same.meaning(now.asked))
        except QuotaError as error:
            reasons.append(
                (before.line, f"{before.name}: what would be written is refused: {error}")
            )
            continue
        wrong = [name for name in differing if name not in lost]
        if wrong:
            reasons.append((before.line, f"{before.name} would ask for another {wrong[0]}"))
        before_too = {told(one) for one in request_of(before, strict=True).problems}
        reasons += [
            (before.line, f"{before.name}: {told(one)}")
            for one in request_of(after, strict=True).problems
            if told(one) not in before_too
        ]
    if reasons:
        raise CannotConvert(file, reasons)
