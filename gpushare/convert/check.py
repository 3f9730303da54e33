# SPDX-License-Identifier: Apache-2.0
"""What was written, read as its readers will: it must be the same request."""

from __future__ import annotations

from collections.abc import Iterator

from gpushare.convert import same
from gpushare.convert.said import CannotConvert
from gpushare.convert.words import Words
from gpushare.convert.work import Work, told
from gpushare.manifest import Container, File, read
from gpushare.manifest.request import request_of
from gpushare.marks import Place
from gpushare.quota import QuotaError


def check(file: File, text: str, work: Work) -> None:
    """Read what was written as its readers will; CannotConvert where it is another request."""
    again = {_where(one): one for one in read(file.path, text).containers}
    done = {id(asks.container): said for asks, said, _ in work.done}
    reasons = [
        (before.line, f"{before.name}: {why}")
        for before in file.containers
        for why in _differs(before, again.get(_where(before)), done.get(id(before)))
    ]
    if reasons:
        raise CannotConvert(file, reasons)


def _where(container: Container) -> tuple[str, Place]:
    return str(container.document), container.place


def _differs(before: Container, after: Container | None, said: Words | None) -> Iterator[str]:
    """Yield what is not the same of a container, but for what `said` is lost."""
    if after is None:
        yield "without its resources nothing says that it is a container; add its image"
        return
    asked, now = (request_of(one, strict=False).asked for one in (before, after))
    if said is None:
        if {key: one.value for key, one in asked.items()} != {
            key: one.value for key, one in now.items()
        }:
            yield "would ask for something else, for it shares what was changed"
        return
    lost = same.fields_of(one.key for one in said.lost)
    try:
        differing = same.differing(same.meaning(asked), same.meaning(now))
    except QuotaError as error:
        yield f"what would be written is refused: {error}"
        return
    for name in differing:
        if name not in lost:
            by = next(
                (f", by {one.source}" for key, one in now.items() if same.field_of(key) == name), ""
            )
            yield f"would ask for another {name}{by}; take that out, and convert again"
    before_too = {told(one) for one in request_of(before, strict=True).problems}
    for problem in request_of(after, strict=True).problems:
        if told(problem) not in before_too:
            yield told(problem)
