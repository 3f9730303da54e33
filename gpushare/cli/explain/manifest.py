# SPDX-License-Identifier: Apache-2.0
"""A manifest, a config.json or an image: the meaning of its keys, and the effective request."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import yaml

from gpushare import config
from gpushare.client import DaemonError, DaemonUnreachable, RequestRefused, UnknownTenant
from gpushare.compatibility.rules import Machine, check_precisions, describe_precisions
from gpushare.errors import ErrorCode, UserError
from gpushare.host import cdi_files
from gpushare.manifest import read
from gpushare.manifest.request import (
    handed_on,
    image_of,
    request_of,
    request_on_node,
    settings_of,
)
from gpushare.oci import cdi
from gpushare.oci.driver_files import DriverFiles, from_cdi
from gpushare.oci.spec import SpecError
from gpushare.quota.annotations import SCOPE, VENDOR
from gpushare.quota.effective_request import EffectiveRequest
from gpushare.quota.keys import ANNOTATION_PREFIX, BY_ENV, KEYS, Key, format_percent, is_quota
from gpushare.quota.request import REFINING_KEYS
from gpushare.quota.size import exact_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpushare.client import Client
    from gpushare.compatibility.model import ModelFormats
    from gpushare.compatibility.rules import CardFacts, Image
    from gpushare.images import InspectedImage
    from gpushare.manifest.model import (
        Container,
        Document,
        ManifestFile,
        ManifestValue,
    )
    from gpushare.manifest.request import ManifestRequest, NodeRequest
    from gpushare.quota.effective_request import EffectiveRequest

OURS: Final = "gpushare"
_IMAGE: Final = re.compile(r"[A-Za-z0-9][\w./:@-]{0,254}", re.ASCII)
_BUILT_IN: Final = "gpushare's defaults"
_NEEDS: Final = (
    "containerd passes only the pod annotations that its configuration lists. `gpushare runtime "
    "configure` adds {names}."
)
_FIRST: Final = (
    "{what} names no container. The first container of this pod that is created gets it, and the "
    "others are refused."
)
_SCHEDULED: Final = (
    "The Kubernetes scheduler allocates {what}. Annotations only reduce its memory, and set "
    "compute that is not allocated."
)
_NO_CLASS: Final = (
    "{what} is not set: gpushare handles this container only on nodes where it is the default "
    "runtime"
)


CardsOfNode: TypeAlias = "Callable[[], tuple[CardFacts, ...]]"


@dataclass(frozen=True)
class NodePolicy:
    """The configuration of this machine and its source."""

    config: config.Config
    source: str
    driver: DriverFiles | None


def explain_manifest(
    path: str,
    file: Path | None,
    *,
    is_named: bool = True,
    text: str | None = None,
    cards_of: CardsOfNode = tuple,
    model: ModelFormats = (),
) -> dict[str, Any]:
    """Return the explanation of the manifest at `path`, by container, for a node with `file`.

    `file` None is the default configuration file. A file that the user named (`is_named`) must be
    valid; if another one cannot be read, gpushare's defaults apply. `text` replaces the content of
    `path`. `cards_of` asks for the cards of the node, if a container names a format of numbers;
    none: they are not known. `model` is what containers run.

    Raises ManifestError, ConfigError, and UserError for a file without containers or settings.
    """
    manifest = read(path, text)
    node = _node(file, is_named=is_named and file is not None)
    containers = [
        _container(container, manifest, node, cards_of, model) for container in manifest.containers
    ]
    settings = [setting for document in manifest.documents for setting in _settings(document)]
    if not containers and not settings:
        raise UserError(
            f"{path}: no container and no GPU setting. Use a manifest of Kubernetes or docker "
            "compose, a config.json, an ECS task definition or a device plugin's configuration.",
            code=ErrorCode.INVALID,
        )
    return {
        "kind": "file",
        "file": path,
        "node": node.source,
        "containers": containers,
        "settings": settings,
    }


def _node(file: Path | None, *, is_named: bool) -> NodePolicy:
    try:
        loaded = config.load(file)
    except UserError as error:
        if is_named:
            raise
        first = str(error).partition("\n")[0]
        return NodePolicy(config.Config(), f"{_BUILT_IN} ({first})", None)
    return NodePolicy(loaded, str(loaded.file) if loaded.file else _BUILT_IN, _driver(loaded))


def _driver(loaded: config.Config) -> DriverFiles | None:
    try:
        return from_cdi(
            cdi.load(cdi_files.driver_spec_path(loaded.cdi, loaded.state_dir), yaml.safe_load)
        )
    except (cdi.CdiError, OSError, yaml.YAMLError):
        return None


# --- a container ---


def _container(
    container: Container,
    file: ManifestFile,
    node: NodePolicy,
    cards_of: CardsOfNode,
    model: ModelFormats,
) -> dict[str, Any]:
    mode = node.config.terms_of(container.document.namespace).dialects.mode
    request = request_of(container, strict=mode == "strict")
    try:
        there = request_on_node(container, file, terms_of=node.config.terms_of, driver=node.driver)
    except SpecError as error:
        raise UserError(f"{file.path}: {error}", code=ErrorCode.INVALID) from error
    there = _with_scheduled(container, there)
    ignored = [
        {
            **_at(unreachable.value),
            **_key(unreachable.word.source.kind, unreachable.value, unreachable.word.name),
            "translated_by": unreachable.word.dialect.translated_by,
        }
        for unreachable in request.unreachable
    ]
    return {
        "of": str(container.document),
        "name": container.name,
        "init": container.init,
        "line": container.line,
        "keys": [*_own(container), *_vendors(container, request)],
        "combined": {key: value.text for key, value in request.requested.items()},
        "ignored": ignored,
        "cards": _cards(there),
        "applied": _applied(there),
        "effective": None if there.effective is None else _effective(there.effective, container),
        "refused": there.refused,
        "problems": [str(problem.error) for problem in request.problems],
        "notes": list(
            dict.fromkeys(
                [
                    *_notes(container, request, there),
                    *_precisions(image_of(container, request, model), cards_of),
                ]
            )
        ),
    }


def _with_scheduled(container: Container, there: NodeRequest) -> NodeRequest:
    """Return `there`; of what the scheduler allocates, the request may set the compute alone."""
    requested = () if there.requested is None else there.requested.quota.requested
    if container.scheduled and there.refused and set(requested) <= set(REFINING_KEYS):
        return replace(there, refused="", effective=EffectiveRequest("none", "", count=0))
    return there


def _own(container: Container) -> Iterator[dict[str, Any]]:
    for name, value in container.annotations.items():
        if name.startswith(ANNOTATION_PREFIX):
            key = name[len(ANNOTATION_PREFIX) :]
            scope = key[len(SCOPE) :].partition(".")[0] if key.startswith(SCOPE) else ""
            known = KEYS.get(key.rpartition(".")[2])
            if scope and scope != container.name:
                means = f"nothing here: it is for {scope}"
            elif key == f"{SCOPE}{scope}.{VENDOR}":
                means = "the vendors' keys that the cluster's admission policy found"
            else:
                means = _canonical(known, value.text)
            yield _explained_key("annotation", name, value, OURS, _meaning(known), means)
    for name, value in container.env.items():
        if is_quota(name):
            known = BY_ENV.get(name)
            means = _canonical(known, known.certain(value.text) if known else "")
            yield _explained_key("env", name, value, OURS, _meaning(known), means)


def _meaning(key: Key | None) -> str:
    return "" if key is None else key.meaning


def _canonical(key: Key | None, text: str) -> str:
    if key is None:
        return "not a gpushare key"
    try:
        key.parse(text)
    except ValueError as error:
        return str(error)
    return f"{key.name}={text}"


def _vendors(container: Container, request: ManifestRequest) -> Iterator[dict[str, Any]]:
    for spoken in request.dialects:
        for word in spoken.words:
            value = container.values(word.source.kind).get(word.name)
            means = spoken.meant.get(word.name, "")
            if value is not None:
                title = spoken.dialect.title
                meaning = word.row.meaning
                found = _explained_key(word.source.kind, word.name, value, title, meaning, means)
                yield {**found, "reaches": word.row.is_visible}


def _explained_key(
    where: str, name: str, value: ManifestValue, vendor: str, meaning: str, means: str
) -> dict[str, Any]:
    return {
        **_at(value),
        **_key(where, value, name),
        "vendor": vendor,
        "meaning": meaning,
        "means": means,
        "reaches": True,
    }


def _at(value: ManifestValue) -> dict[str, Any]:
    return {"line": value.line, "column": value.column}


def _key(where: str, value: ManifestValue, name: str) -> dict[str, Any]:
    return {"where": where, "key": name, "value": value.text}


def _applied(there: NodeRequest) -> dict[str, Any]:
    if there.requested is None:
        return {}
    return {
        key: {"text": value.text, "written": value.shown, "source": str(value.source)}
        for key, value in there.requested.quota.requested.items()
    }


def _cards(there: NodeRequest) -> dict[str, Any] | None:
    """Return the cards that an engine passes in addition to variables and annotations."""
    cards = None if there.requested is None else there.requested.cards
    if cards is None:
        return None
    named = [*cards.devices, *(f"/dev/nvidia{minor}" for minor in cards.minors)]
    count = None if cards.all_cards else cards.count or len(named)
    return {"source": cards.source, "count": count, "named": named}


def _effective(effective: EffectiveRequest, container: Container) -> dict[str, Any]:
    kind, why = effective.kind, effective.why
    if kind == "none" and container.scheduled:
        return {"kind": "scheduled", "why": _SCHEDULED.format(what=container.scheduled), "count": 0}
    data: dict[str, Any] = {"kind": kind, "why": why, "count": effective.count}
    if effective.kind == "shared":
        data |= {
            "memory": _memory(effective),
            "cores": effective.cores,
            "policy": effective.policy,
            "class": effective.class_,
            "priority": effective.priority,
        }
    return data


def _memory(effective: EffectiveRequest) -> str:
    if effective.memory_bytes is None:
        return "" if effective.memory_percent is None else format_percent(effective.memory_percent)
    return exact_size(effective.memory_bytes)


def _notes(container: Container, request: ManifestRequest, there: NodeRequest) -> Iterator[str]:
    if there.requested is not None:
        yield from there.requested.quota.notes
    elif there.refused:
        yield from request.notes
    yield from there.notes
    unnamed = there.requested.quota.unnamed if there.requested is not None else None
    if unnamed is not None and len(container.pod.running_together) > 1:
        yield _FIRST.format(what=unnamed.source)
    passed = handed_on(container)
    if passed:
        yield _NEEDS.format(names=", ".join(sorted(passed)))
    requests = bool(
        request.requested or (there.requested is not None and there.requested.quota.requested)
    )
    if requests and container.document.kind != "oci" and not _named(container):
        yield _NO_CLASS.format(what="runtimeClassName" if container.in_cluster else "runtime")
    if container.unknown:
        yield f"{', '.join(container.unknown)}: the value is defined elsewhere and was not read"


def _precisions(image: Image, cards_of: CardsOfNode) -> Iterator[str]:
    """Yield the formats of numbers of its program that a card does not have, or may not."""
    if not image.precisions:
        return
    cards = cards_of()
    if not cards:
        yield from describe_precisions(image)
    for finding in check_precisions(image, Machine(cards=cards)):
        yield f"{finding.what}; {finding.fix}"


def _named(container: Container) -> str:
    """Return the runtime or runtime class of the manifest."""
    return container.pod.runtime_class if container.in_cluster else container.runtime


# --- an operator's settings ---


def _settings(document: Document) -> Iterator[dict[str, Any]]:
    for word, value in settings_of(document):
        yield {
            **_at(value),
            **_key(word.source.kind, value, word.name),
            "of": str(document),
            "vendor": word.dialect.title,
            "meaning": word.row.meaning,
            "instead": word.row.instead,
        }


# --- an image, or a container of this node ---


def may_be_image(text: str) -> bool:
    """Whether `text` can be the name of an image or a container."""
    return _IMAGE.fullmatch(text) is not None


def explain_container(name: str, client: Client) -> dict[str, Any] | None:
    """Return the container `name` of this node, None if there is none or no daemon responds."""
    try:
        tenant = client.tenant(name)
    except (UnknownTenant, DaemonUnreachable, DaemonError, RequestRefused):
        return None
    return {"kind": "container", "name": tenant["name"] or name, "state": tenant["state"]}


def explain_image(name: str, file: Path | None, *, is_named: bool) -> dict[str, Any] | None:
    """Return the explanation of the image `name` as explain_manifest(), None if there is none.

    `docker run --runtime=gpushare NAME` requests what the variables of the image request.
    """
    inspected = _inspected(name)
    if inspected is None:
        return None
    env = [f"{variable}={text}" for variable, text in inspected.variables.items()]
    spec = {"ociVersion": "1.0.2", "process": {"env": env}, "root": {"path": "rootfs"}}
    data = explain_manifest("-", file, is_named=is_named, text=json.dumps(spec))
    (explained_container,) = data["containers"]
    rest = {
        key: explained_container[key]
        for key in ("keys", "cards", "applied", "effective", "refused", "notes", "problems")
    }
    toolkit = inspected.variables.get("CUDA_VERSION", "")
    for row in rest["keys"]:
        del row["line"], row["column"]  # of the generated text
    return {"kind": "image", "name": name, "node": data["node"], "cuda": toolkit, **rest}


def _inspected(name: str) -> InspectedImage | None:
    # Not at the top: a manifest needs no engine.
    from gpushare import images  # noqa: PLC0415

    for engine in images.installed_engines():
        try:
            inspected = engine.image(name)
        except images.NotFound:
            continue  # it does not respond to this user; another engine may
        if inspected is not None:
            return inspected
    return None
