# SPDX-License-Identifier: Apache-2.0
"""Errors in manifests: each with its position, key, value, rule and fix.

`check` runs all checks: by the schemas in `schemas`, for keys that are unknown, misplaced or for no
container, and of what is requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Final

from gpushare.compatibility.model import ModelFormats
from gpushare.compatibility.rules import describe_precisions
from gpushare.manifest.check.schemas import check_alauda, check_shape
from gpushare.manifest.model import (
    ERROR,
    INFO,
    OUTSIDE,
    WARNING,
    Container,
    Document,
    FindingLevel,
    ManifestError,
    ManifestFile,
    ManifestFinding,
    ManifestValue,
    Pod,
    key_finding,
    node_finding,
    value_finding,
    values_of_mapping,
)
from gpushare.manifest.request import ManifestRequest, asks, image_of, request_of, settings_of
from gpushare.protocol.kubernetes import CARD_RESOURCE, RESOURCE
from gpushare.quota.annotations import scoped_name
from gpushare.quota.dialects import TABLES
from gpushare.quota.dialects.parse import DialectRequest, value_title
from gpushare.quota.dialects.translate import container_selector
from gpushare.quota.dialects.vendor_key import Dialect, KeyLocation
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.errors import BadValue, QuotaError, quoted
from gpushare.quota.keys import ANNOTATION_PREFIX, BY_ENV, KEYS, request_from
from gpushare.quota.node_settings import OWN, read_own_label
from gpushare.quota.request import REFINING_KEYS, ValueSource
from gpushare.text_position import KeyPath
from gpushare.yaml_nodes import MAX_VALUES, YamlNode, find, value_at

_REACHING: Final = frozenset({"env", "annotation", "pod annotation"})
_PARTS: Final = frozenset({"memory", "memory-percent", "cores", "count", "devices"})


@dataclass(frozen=True)
class Checked:
    """The findings in a file, sorted by position, and how many containers it has.

    `values` is how many values there were to look at, at most.
    """

    path: str
    findings: tuple[ManifestFinding, ...]
    containers: int = 0
    asking: int = 0
    values: int = MAX_VALUES

    def count(self, level: FindingLevel) -> int:
        """Return how many findings there are of `level`."""
        return sum(finding.level == level for finding in self.findings)


def check(file: ManifestFile, *, strict: bool, model: ModelFormats = ()) -> Checked:
    """Return the findings in `file`; `strict` enforces every vendor's own rules.

    `model` is the one that its containers run.
    """
    findings = list(_duplicate_keys(file))
    asking = 0
    for document in file.documents:
        findings += _check_document(document)
        for container in document.containers:
            request = request_of(container, strict=strict)
            asking += asks(container, request)
            findings += [*check_resources(container), *check_unknown_keys(container)]
            findings += check_request(container, request, strict=strict)
            findings += describe_formats(container, request, model)
    # Containers of a pod share its annotations, and aliases are read once for each of their uses.
    return Checked(
        file.path, tuple(sorted(set(findings))), len(file.containers), asking, file.values
    )


def report_unreadable(error: ManifestError) -> Checked:
    """Return the finding for a file that cannot be read, and may have been long to read."""
    fault = error.fault
    finding = ManifestFinding(fault.line, fault.column, "", fault.message, "")
    return Checked(error.path, (finding,))


def _check_document(document: Document) -> Iterator[ManifestFinding]:
    yield from check_shape(document)
    yield from check_scopes(document)
    yield from check_misplaced_resources(document)
    yield from check_settings(document)
    yield from check_quotas(document)
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


def describe_formats(
    container: Container, request: ManifestRequest, model: ModelFormats
) -> Iterator[ManifestFinding]:
    """Yield which cards have the formats of numbers of its program: a node may have them."""
    where = f"container {container.name}" if container.name else ""
    for text in describe_precisions(image_of(container, request, model)):
        yield node_finding(where, container.node, text, "", level=INFO)


def check_request(
    container: Container, request: ManifestRequest, *, strict: bool
) -> Iterator[ManifestFinding]:
    """Yield the findings in the request of a container."""
    for problem in request.problems:
        error = problem.error
        if problem.value is not None:
            yield value_finding(error.where, problem.value, error.rule, error.fix)
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
    for text in container.unresolved:
        rule = "is not resolved here, and decides what the container requests"
        fix = "check what `docker compose config` prints"
        yield node_finding(text, container.node, rule, fix, level=INFO)
    if not request.problems and not container.unresolved:
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
    refused = {problem.value.place for problem in request.problems if problem.value is not None}
    untranslated = sorted(
        (
            located
            for located in request.unreachable
            if located.word.dialect is dialect_request.dialect
            and located.value.place not in refused
        ),
        key=lambda located: (located.value.line, located.value.column),
    )
    if not untranslated:
        return
    sources = {located.word.source for located in untranslated}
    means = [
        f"{key}={located.text}"
        for key, located in dialect_request.layer.items()
        if located.source in sources
    ]
    unseen = "not passed to the container runtime"
    dialect = dialect_request.dialect
    of_claim = {located.word.row.where for located in untranslated} == {"claim"}
    fix = f"translated by: {(of_claim and dialect.claims_by) or dialect.translation}"
    word, first = untranslated[0]
    if len(untranslated) == 1:
        rule = f"means {' '.join(means)}, and is {unseen}" if means else f"is {unseen}"
        yield value_finding(value_title(word), first, rule, fix, INFO)
        return
    rule = f"mean {' '.join(means)}, and are {unseen}" if means else f"are {unseen}"
    listed = _list_sources([located.word.source for located in untranslated])
    key = f"{listed} ({dialect_request.dialect.title})"
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
        value.source.kind in _REACHING and key in _PARTS for key, value in request.requested.items()
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
            word.row.read(value.text)
        except BadValue as bad:
            yield value_finding(value_title(word), value, bad.rule, bad.fix, ERROR)
    for name, value in document.values("node label").items():
        if name.startswith(OWN):
            try:
                read_own_label(name, value.text)
            except QuotaError as error:
                yield value_finding(error.where, value, error.rule, error.fix, ERROR)


# --- keys that are unknown or misplaced, and annotations that are for no container ---

_SCOPE: Final = "container."
_MOST_NAMED: Final = 20  # of a pod's containers in a finding
#: Kubernetes' own kinds with pods. Another kind may have resources beside its pods.
_WORKLOADS: Final = frozenset(
    {
        "CronJob",
        "DaemonSet",
        "Deployment",
        "Job",
        "Pod",
        "PodTemplate",
        "ReplicaSet",
        "ReplicationController",
        "StatefulSet",
    }
)
_OURS: Final = ANNOTATION_PREFIX.rstrip("/")
_LOOKED_AT: Final[tuple[KeyLocation, ...]] = ("limit", "annotation", "env")
_PLACES: Final[dict[KeyLocation, str]] = {
    "limit": "resources.limits of the container",
    "annotation": "annotations of the pod",
    "label": "labels of the pod",
    "env": "the container's environment",
    "node label": "labels of the node",
    "node annotation": "annotations of the node",
}


def check_scopes(document: Document) -> Iterator[ManifestFinding]:
    """Yield annotations that are for no container, or do not say for which."""
    if document.kind in {*OUTSIDE, "oci"}:
        return
    for pod in document.pods:
        yield from _missing_containers(pod)
        yield from _ambiguous_keys(pod)
        yield from _first_container_takes(pod)
    yield from _misplaced_annotations(document)


def _missing_containers(pod: Pod) -> Iterator[ManifestFinding]:
    """Yield annotations for a container that the pod does not have."""
    names = [container.name for container in pod.containers]
    scoped = {
        name: (value, _scope(name)[0])
        for name, value in pod.annotations.items()
        if name.startswith(ANNOTATION_PREFIX + _SCOPE)
    }
    texts = {name: value.text for name, value in pod.annotations.items()}
    for annotation in TABLES.find("annotation", texts):
        if annotation.container:
            scoped[annotation.name] = pod.annotations[annotation.name], annotation.container
    for name, (value, container) in scoped.items():
        if container and container not in pod.names:
            yield key_finding(
                f"annotation {name}",
                value,
                f"is for container {container}, which this pod does not have",
                _suggest(name, container, names),
            )


def _scope(name: str) -> tuple[str, str]:
    """Return the container and the key of `gpushare.io/container.NAME.KEY`."""
    container, _, key = name[len(ANNOTATION_PREFIX) + len(_SCOPE) :].partition(".")
    return container, key


def _suggest(name: str, container: str, names: list[str]) -> str:
    close = get_close_matches(container, names[:_MOST_NAMED], n=1, cutoff=0.6)
    if close:
        return f"did you mean {name.replace(container, close[0], 1)}?"
    return f"its containers are {_listed(names)}"


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _ambiguous_keys(pod: Pod) -> Iterator[ManifestFinding]:
    """Yield annotations of ours that apply to several containers, of which one is refused."""
    mine = [name for name in pod.annotations if name.startswith(ANNOTATION_PREFIX)]
    unscoped = [name for name in mine if not name.startswith(ANNOTATION_PREFIX + _SCOPE)]
    named = {_scope(name)[0] for name in mine if name not in unscoped}
    running = [container.name for container in pod.running_together]
    if named or len(running) < 2:
        return
    # Each container that has an allocation of the scheduler may use its part as they say.
    scheduled = any(container.scheduled for container in pod.containers)
    for name in unscoped:
        key = name[len(ANNOTATION_PREFIX) :]
        if key in KEYS and not (key in REFINING_KEYS and scheduled):
            yield key_finding(
                f"annotation {name}",
                pod.annotations[name],
                f"names no container, and applies to each of {_listed(running)}",
                f"write {scoped_name(running[0], key)}",
            )


def _first_container_takes(pod: Pod) -> Iterator[ManifestFinding]:
    """Yield vendors' annotations that name no container in a pod that has several.

    Their vendor knows which one is the first of its pod, and a node does not.
    """
    running = [container.name for container in pod.running_together]
    if len(running) < 2:
        return
    texts = {name: value.text for name, value in pod.annotations.items()}
    words = TABLES.find("annotation", texts)
    named = {word.dialect.name for word in words if word.container or word.row.names_container}
    for word in words:
        if word.row.role == "request" and word.dialect.name not in named:
            by = container_selector(TABLES, word.name)
            yield key_finding(
                f"annotation {value_title(word).partition(' ')[2]}",
                pod.annotations[word.name],
                f"names no container: of {_listed(running)} the one that is created first gets "
                "it, and the others are refused",
                f"add {by}: {running[0]}" if by else "use gpushare convert, which adds the names",
                WARNING,
            )
            named.add(word.dialect.name)


def _misplaced_annotations(document: Document) -> Iterator[ManifestFinding]:
    """Yield requests in the annotations of an object instead of its pod template."""
    of_pods = {id(pod.metadata[0]) for pod in document.pods if pod.metadata}
    if not document.pods or id(value_at(document.root, "metadata")) in of_pods:
        return  # a Pod's own are its pod's
    for name, value in document.annotations.items():
        if _is_request(name, value):
            yield key_finding(
                f"annotation {name}",
                value,
                f"belongs to the {document.kind}, and is not passed to its pods",
                "move it to metadata.annotations of the pod template",
            )


def _is_request(name: str, value: ManifestValue) -> bool:
    if name.startswith(ANNOTATION_PREFIX):
        return True
    words = TABLES.find("annotation", {name: value.text})
    return any(word.row.role in {"request", "option"} for word in words)


def check_quotas(document: Document) -> Iterator[ManifestFinding]:
    """Yield the names of a ResourceQuota that are not counted.

    Source: Kubernetes, "Resource quotas": of extended resources only `requests.NAME` is. HAMi's own
    scheduler reads `limits.NAME`.
    """
    if document.kind != "ResourceQuota":
        return
    place = ("spec", "hard")
    names = (*_known_names("limit"), RESOURCE, CARD_RESOURCE)
    for name, value in values_of_mapping(find(document.root, place), place).items():
        prefix = next((one for one in ("requests.", "limits.") if name.startswith(one)), "")
        resource = name.removeprefix(prefix)
        is_known = resource in names or bool(TABLES.find("limit", {resource: ""}))
        if is_known and prefix != "requests.":
            rule = "is not counted: Kubernetes counts the requests of an extended resource"
            fix = f"write requests.{resource}"
            yield key_finding(f"quota {name}", value, rule, fix, WARNING)
        elif not is_known and prefix and "/" in resource:
            close = get_close_matches(resource, names, n=1, cutoff=0.8)
            if close:
                rule = "is not counted: no resource has this name"
                yield key_finding(
                    f"quota {name}", value, rule, f"did you mean {prefix}{close[0]}?", WARNING
                )


def check_misplaced_resources(document: Document) -> Iterator[ManifestFinding]:
    """Yield vendors' resources that are in a pod or its object, or in a container's own keys."""
    if document.kind in {*OUTSIDE, "oci"}:
        return
    for pod in document.pods:
        for container in pod.containers:
            yield from _misplaced_resources(container.node, container.place)
        if document.kind in _WORKLOADS:
            for length in range(len(pod.place) + 1):
                place = (*pod.place[:length], "resources")
                yield from _misplaced_resources(find(document.root, place), place)


def _misplaced_resources(node: YamlNode | None, place: KeyPath) -> Iterator[ManifestFinding]:
    for kind in ("limit", "request"):
        values = values_of_mapping(value_at(node, f"{kind}s"), (*place, f"{kind}s"))
        known = {word.name for word in TABLES.find("limit", dict.fromkeys(values, ""))}
        for name in sorted(known):
            yield key_finding(
                f"{kind} {name}",
                values[name],
                "is not in resources of a container, and allocates nothing",
                f"move it to resources.{kind}s of the container",
            )


def check_unknown_keys(container: Container) -> Iterator[ManifestFinding]:
    """Yield the keys of `container` that begin like a vendor's and are in no table."""
    for where in _LOOKED_AT:
        values = container.values(where)
        known = {word.name: word for word in TABLES.find(where, dict.fromkeys(values, ""))}
        for name, value in values.items():
            if name not in known:
                yield from _check_key(where, name, value)
            elif cards := known[name].dialect.other_cards:
                rule = f"is for {cards}, and no node with NVIDIA cards serves it"
                fix = "select nodes with those cards; gpushare ignores the key"
                yield key_finding(f"{where} {name}", value, rule, fix, INFO)
    for name, value in container.labels.items():
        if not TABLES.find("label", {name: ""}):
            yield from _misplaced_key("label", name, value)
    for name, value in container.annotations.items():
        domain, slash, key = name.partition("/")
        if slash and domain != _OURS and get_close_matches(domain, [_OURS], cutoff=0.8):
            fix = f"did you mean {ANNOTATION_PREFIX}{key}?"
            yield key_finding(f"annotation {name}", value, "is not a key of gpushare", fix)


def _check_key(where: KeyLocation, name: str, value: ManifestValue) -> Iterator[ManifestFinding]:
    findings = list(_misplaced_key(where, name, value))
    yield from findings
    dialect = _dialect_of(name)
    if findings or dialect is None:
        return
    key = f"{where} {name}"
    close = get_close_matches(name, _known_names(where), n=1, cutoff=0.8)
    if close:
        yield key_finding(
            key, value, f"is not a key of {dialect.title}", f"did you mean {close[0]}?"
        )
    elif where != "limit" or not name.startswith("nvidia.com/"):
        # A cluster's own device plugin may call what it shares as it likes.
        fix = "gpushare ignores it"
        yield key_finding(key, value, f"is not a known key of {dialect.title}", fix, WARNING)


def _misplaced_key(
    where: KeyLocation, name: str, value: ManifestValue
) -> Iterator[ManifestFinding]:
    """Yield a key that its vendor only reads in another place."""
    places = [other for other in _PLACES if other != where and TABLES.find(other, {name: ""})]
    if not places or "/" not in name:
        return
    rule = f"has no effect in {_PLACES[where]}"
    yield key_finding(f"{where} {name}", value, rule, f"move it to {_PLACES[places[0]]}", ERROR)


def _dialect_of(name: str) -> Dialect | None:
    dialects = (
        dialect
        for dialect in TABLES.dialects
        if dialect.domains and name.startswith(dialect.domains)
    )
    return next(dialects, None)


@cache
def _known_names(where: KeyLocation) -> tuple[str, ...]:
    rows = (row for dialect in TABLES.dialects for row in dialect.rows if row.where == where)
    return tuple(dict.fromkeys(row.name for row in rows if row.pattern is None))
