# SPDX-License-Identifier: Apache-2.0
"""Errors in manifests: each with its position, key, value, rule and fix.

`check` runs all checks: `schema_errors` by the schemas in `schemas`, `keys` for keys that are
unknown, misplaced or for no container, and here what is requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpushare.manifest.check.keys import (
    check_misplaced_resources,
    check_scopes,
    check_unknown_keys,
)
from gpushare.manifest.check.schema_errors import check_alauda, check_shape
from gpushare.manifest.model import (
    ERROR,
    INFO,
    WARNING,
    Container,
    Document,
    FindingLevel,
    ManifestError,
    ManifestFile,
    ManifestFinding,
    key_finding,
    node_finding,
    value_finding,
)
from gpushare.manifest.request import ManifestRequest, request_of, settings_of
from gpushare.quota.annotations import scoped_name
from gpushare.quota.dialects import TABLES, DialectRequest, value_title
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.errors import BadValue, QuotaError, quoted
from gpushare.quota.keys import BY_ENV, request_from
from gpushare.quota.node_settings import OWN, read_own_label
from gpushare.quota.request import REFINING_KEYS, ValueSource

__all__ = [
    "ERROR",
    "INFO",
    "WARNING",
    "Checked",
    "FindingLevel",
    "ManifestFinding",
    "check",
    "report_unreadable",
]

_REACHING: Final = frozenset({"env", "annotation", "pod annotation"})
_PARTS: Final = frozenset({"memory", "memory-percent", "cores", "count", "devices"})


@dataclass(frozen=True)
class Checked:
    """The findings in a file, sorted by position, and how many containers it has."""

    path: str
    findings: tuple[ManifestFinding, ...]
    containers: int = 0
    asking: int = 0

    def count(self, level: FindingLevel) -> int:
        """Return how many findings there are of `level`."""
        return sum(finding.level == level for finding in self.findings)


def check(file: ManifestFile, *, strict: bool) -> Checked:
    """Return the findings in `file`; `strict` enforces every vendor's own rules."""
    found = list(_duplicate_keys(file))
    asking = 0
    for document in file.documents:
        found += _check_document(document)
        for container in document.containers:
            request = request_of(container, strict=strict)
            asking += request.asks or container.cards is not None or bool(container.scheduled)
            found += [*check_resources(container), *check_unknown_keys(container)]
            found += check_request(container, request, strict=strict)
    # Containers of a pod share its annotations, and aliases are read once for each of their uses.
    return Checked(file.path, tuple(sorted(set(found))), len(file.containers), asking)


def report_unreadable(error: ManifestError) -> Checked:
    """Return the finding for a file that cannot be read."""
    fault = error.fault
    finding = ManifestFinding(fault.line, fault.column, "", fault.message, "")
    return Checked(error.path, (finding,))


def _check_document(document: Document) -> Iterator[ManifestFinding]:
    yield from check_shape(document)
    yield from check_scopes(document)
    yield from check_misplaced_resources(document)
    yield from check_settings(document)
    yield from check_alauda(document)


def _duplicate_keys(file: ManifestFile) -> Iterator[ManifestFinding]:
    for key, first in file.duplicates:
        rule = f"is a duplicate of the key in line {first.line}"
        yield node_finding(key.text, key, rule, "keep one", level=ERROR)


def check_resources(container: Container) -> Iterator[ManifestFinding]:
    """Yield requests that differ from their limits. Only vendors' resources are checked.

    Source: Kubernetes, "Extended resources": a request without a limit is refused, and so is one
    that differs from it. Of the two, only the request is optional.
    """
    texts = {name: value.text for name, value in container.requests.items()}
    known = dict.fromkeys(word.name for word in TABLES.find("limit", texts))
    for name in known:
        request, limit = container.requests[name], container.limits.get(name)
        if limit is None:
            fix = "write it under limits; the request is optional"
            yield key_finding(f"request {name}", request, "has no limit of the same name", fix)
        elif request.text.strip() != limit.text.strip():
            rule = f"differs from the limit, {quoted(limit.text)}"
            fix = f"write {limit.text}, or remove the request"
            yield value_finding(f"request {name}", request, rule, fix)


def check_request(
    container: Container, request: ManifestRequest, *, strict: bool
) -> Iterator[ManifestFinding]:
    """Yield the findings in the request of a container."""
    for one in request.problems:
        error = one.error
        if one.value is not None:
            yield value_finding(error.where, one.value, error.rule, error.fix)
        else:
            text = error.value or ""
            yield node_finding(error.where, container.node, error.rule, error.fix, value=text)
    where = f"container {container.name}" if container.name else ""
    alone = _unheard_variables(container, request)
    for name in alone:
        rule = "requests nothing by itself in a pod, unless trust.env of the node is request"
        fix = f"write the annotation {scoped_name(container.name or 'NAME', BY_ENV[name].name)}"
        yield value_finding(f"env {name}", container.env[name], rule, fix, WARNING)
    for note in request.notes:
        if note.startswith(tuple(f"env {name} " for name in alone)):
            continue  # said above
        yield node_finding(where, container.node, note, "", level=INFO if strict else WARNING)
    for dialect_request in request.dialects:
        yield from _untranslated_keys(dialect_request, request)
    if not request.problems:
        yield from _refused_request(container, request)
    yield from _missing_runtime(container, request)


def _unheard_variables(container: Container, request: ManifestRequest) -> list[str]:
    """Return our variables in a pod's container that has no annotations of ours."""
    if not container.in_cluster or request.own:
        return []
    return [name for name in container.env if name in BY_ENV]


def _untranslated_keys(
    dialect_request: DialectRequest, request: ManifestRequest
) -> Iterator[ManifestFinding]:
    """Yield one finding for all keys of a dialect that no runtime gets, with what translates them.

    A refused key has its refusal already.
    """
    refused = {one.value.place for one in request.problems if one.value is not None}
    found = sorted(
        (
            one
            for one in request.unreachable
            if one.word.dialect is dialect_request.dialect and one.value.place not in refused
        ),
        key=lambda one: (one.value.line, one.value.column),
    )
    if not found:
        return
    sources = {one.word.source for one in found}
    means = [
        f"{key}={one.text}" for key, one in dialect_request.layer.items() if one.source in sources
    ]
    unseen = "not passed to the container runtime"
    fix = f"translated by: {dialect_request.dialect.translation}"
    word, first = found[0]
    if len(found) == 1:
        rule = f"means {' '.join(means)}, and is {unseen}" if means else f"is {unseen}"
        yield value_finding(value_title(word), first, rule, fix, INFO)
        return
    rule = f"mean {' '.join(means)}, and are {unseen}" if means else f"are {unseen}"
    key = f"{_list_sources([one.word.source for one in found])} ({dialect_request.dialect.title})"
    yield node_finding(key, first.value_node, rule, fix, level=INFO)


def _list_sources(sources: list[ValueSource]) -> str:
    """Return `limits nvidia.com/gpu, nvidia.com/gpumem, label aliyun.com/gpu-count`."""
    names: dict[str, list[str]] = {}
    for source in sources:
        names.setdefault(source.kind, []).append(source.name)
    return ", ".join(
        f"{kind}{'s' if len(of_kind) > 1 else ''} {', '.join(of_kind)}"
        for kind, of_kind in names.items()
    )


def _refused_request(container: Container, request: ManifestRequest) -> Iterator[ManifestFinding]:
    """Yield why a node refuses a request whose values are valid one by one."""
    try:
        resolve_request(request_from(request.requested), cards=container.cards)
    except QuotaError as error:
        for key, one in request.requested.items():
            value = container.values(one.source.kind).get(one.source.name)
            if str(one.source) != error.where or value is None:
                continue
            if container.scheduled and key in REFINING_KEYS:
                continue  # the scheduler gives it memory
            level = ERROR if key != "cores" else WARNING  # defaults.memory of a node may say it
            if one.source.kind not in _REACHING:
                level = INFO  # it is right where it is for
            yield value_finding(error.where, value, error.rule, error.fix, level)
            return


def _missing_runtime(container: Container, request: ManifestRequest) -> Iterator[ManifestFinding]:
    """Yield a container with a request and without a runtime that reads it."""
    reaching = any(
        one.source.kind in _REACHING and key in _PARTS for key, one in request.requested.items()
    )
    if not reaching or container.document.kind in {"oci", "ecs"}:
        return
    if container.runtime or container.pod.runtime_class:
        return
    key = "runtimeClassName" if container.in_cluster else "runtime"
    rule = "is not set, so the request applies only where gpushare is the default runtime"
    yield node_finding(key, container.node, rule, f"add {key}: gpushare", level=INFO)


def check_settings(document: Document) -> Iterator[ManifestFinding]:
    """Yield the errors in an operator's settings in `document`."""
    for word, value in settings_of(document):
        try:
            word.row.unit.read(value.text)
        except BadValue as bad:
            yield value_finding(value_title(word), value, bad.rule, bad.fix, ERROR)
    for name, value in document.values("node label").items():
        if name.startswith(OWN):
            try:
                read_own_label(name, value.text)
            except QuotaError as error:
                yield value_finding(error.where, value, error.rule, error.fix, ERROR)
