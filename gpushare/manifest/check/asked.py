# SPDX-License-Identifier: Apache-2.0
"""What a container asks: what of it is refused, what is taken otherwise, what nobody hears."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpushare.manifest.check.finding import ERROR, INFO, WARNING, Finding, of_node, of_value
from gpushare.manifest.file import Container, Document
from gpushare.manifest.request import Request, settings_of
from gpushare.quota import BadValue, Quota, QuotaError, give
from gpushare.quota.annotations import scoped_name
from gpushare.quota.dialects import Spoken, shown
from gpushare.quota.keys import BY_ENV, KEYS
from gpushare.quota.quota import Source

_REACHING: Final = frozenset({"env", "annotation", "pod annotation"})
_PARTS: Final = frozenset({"memory", "memory-percent", "cores", "count", "devices"})


def asked(container: Container, request: Request, *, strict: bool) -> Iterator[Finding]:
    """Yield what there is to say of `request`, which `container` makes."""
    for one in request.problems:
        if one.value is not None:
            yield of_value(one.source, one.value, one.rule, one.fix)
        else:
            yield of_node(one.source, container.node, one.rule, one.fix, value=one.text or "")
    where = f"container {container.name}" if container.name else ""
    alone = _alone(container, request)
    for name in alone:
        rule = "asks for nothing by itself in a pod, unless the node's trust.env is ask"
        fix = f"write the annotation {scoped_name(container.name or 'NAME', BY_ENV[name].name)}"
        yield of_value(f"env {name}", container.env[name], rule, fix, WARNING)
    for note in request.notes:
        if note.startswith(tuple(f"env {name} " for name in alone)):
            continue  # said above
        yield of_node(where, container.node, note, "", level=INFO if strict else WARNING)
    for said in request.spoken:
        yield from _unheard(said, request)
    if not request.problems:
        yield from _not_given(container, request)
    yield from _without_runtime(container, request)


def _alone(container: Container, request: Request) -> list[str]:
    """Return the variables of ours that a pod's container has with no annotation beside them."""
    if not container.in_cluster or request.own:
        return []
    return [name for name in container.env if name in BY_ENV]


def _unheard(said: Spoken, request: Request) -> Iterator[Finding]:
    """Yield, once for all words of a dialect, that they reach no runtime, and what translates them.

    Of a word that is refused the refusal is enough.
    """
    refused = {one.value.place for one in request.problems if one.value is not None}
    found = sorted(
        (
            one
            for one in request.unreachable
            if one.word.dialect is said.dialect and one.value.place not in refused
        ),
        key=lambda one: (one.value.line, one.value.column),
    )
    if not found:
        return
    sources = {one.word.source for one in found}
    means = [f"{key}={one.text}" for key, one in said.layer.items() if one.source in sources]
    comes = f"({' '.join(means)}) " if means else ""
    fix = f"translated by: {said.dialect.translation}"
    word, first = found[0]
    if len(found) == 1:
        yield of_value(shown(word), first, f"{comes}reaches no runtime by itself", fix, INFO)
        return
    key = f"{_named([one.word.source for one in found])} ({said.dialect.title})"
    yield of_node(key, first.value_node, f"{comes}reach no runtime by themselves", fix, level=INFO)


def _named(sources: list[Source]) -> str:
    """Return `limits nvidia.com/gpu, nvidia.com/gpumem, label aliyun.com/gpu-count`."""
    names: dict[str, list[str]] = {}
    for source in sources:
        names.setdefault(source.kind, []).append(source.name)
    return ", ".join(
        f"{kind}{'s' if len(of_kind) > 1 else ''} {', '.join(of_kind)}"
        for kind, of_kind in names.items()
    )


def _not_given(container: Container, request: Request) -> Iterator[Finding]:
    """Yield why a node of gpushare would refuse what is asked, though each value is right."""
    values = {KEYS[key].field: one.value for key, one in request.asked.items()}
    quota = Quota(**values, asked=request.asked)  # type: ignore[arg-type]
    try:
        give(quota, cards=container.cards)
    except QuotaError as error:
        for key, one in request.asked.items():
            value = container.values(one.source.kind).get(one.source.name)
            if str(one.source) != error.where or value is None:
                continue
            level = ERROR if key != "cores" else WARNING  # defaults.memory of a node may say it
            if one.source.kind not in _REACHING:
                level = INFO  # it is right where it is for
            yield of_value(error.where, value, error.rule, error.fix, level)
            return


def _without_runtime(container: Container, request: Request) -> Iterator[Finding]:
    """Yield that nobody is named who would read what a container asks of a runtime."""
    reaching = any(
        one.source.kind in _REACHING and key in _PARTS for key, one in request.asked.items()
    )
    if not reaching or container.document.kind in {"oci", "ecs"}:
        return
    if container.runtime or container.pod.runtime_class:
        return
    key = "runtimeClassName" if container.in_cluster else "runtime"
    rule = "is not said, so what is asked counts only where gpushare is the default"
    yield of_node(key, container.node, rule, f"add {key}: gpushare", level=INFO)


def settings(document: Document) -> Iterator[Finding]:
    """Yield what is wrong with an operator's settings in `document`."""
    for word, value in settings_of(document):
        try:
            word.row.unit.read(value.text)
        except BadValue as bad:
            yield of_value(shown(word), value, bad.rule, bad.fix, ERROR)
