# SPDX-License-Identifier: Apache-2.0
"""A manifest or a config.json: what its keys mean, which of them are heard, and what is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from gpushare import config
from gpushare.errors import UserError
from gpushare.host import cdi_files
from gpushare.manifest import read, request_of, settings_of
from gpushare.manifest.at_node import at_node, handed_on
from gpushare.oci import cdi
from gpushare.oci.driver import Driver, from_cdi
from gpushare.oci.spec import SpecError
from gpushare.quota import QuotaError
from gpushare.quota.keys import ANNOTATION_PREFIX, BY_ENV, KEYS, Key, is_quota
from gpushare.quota.size import exact_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.manifest import Container, Document, File, Refusal, Request, Value
    from gpushare.manifest.at_node import AtNode
    from gpushare.quota import Given

OURS: Final = "gpushare"
_SCOPE: Final = "container."
_BUILT_IN: Final = "gpushare's own defaults"
_NEEDS: Final = (
    "containerd hands on those of a pod's annotations that its configuration names: {names} after "
    "`gpushare runtime configure`"
)
_FIRST: Final = (
    "{what} names no container: the one of this pod that is made first is given it, and the others "
    "are refused"
)
_NO_CLASS: Final = (
    "no {what} is said: only a node whose default runtime is gpushare hears of this container"
)


@dataclass(frozen=True)
class Node:
    """What this machine would hold a container to, and where that is said."""

    config: config.Config
    said: str
    driver: Driver | None


def explained(
    path: str, file: Path | None, *, is_named: bool = True, text: str | None = None
) -> dict[str, Any]:
    """Return what the manifest at `path` says, by container, for a node configured by `file`.

    None is the usual file. One that the user named (`is_named`) must be right; where another is not
    readable gpushare's own defaults hold. `text` is what `path` would have in it, where it is not
    to be read.

    ManifestError, ConfigError, and UserError for what holds nothing that is known.
    """
    manifest = read(path, text)
    node = _node(file, is_named=is_named and file is not None)
    containers = [_container(one, manifest, node) for one in manifest.containers]
    settings = [found for document in manifest.documents for found in _settings(document)]
    if not containers and not settings:
        raise UserError(
            f"{path}: has no container and no setting of a GPU in it; explain takes what kubectl "
            "or docker compose would, a config.json, an ECS task or a device plugin's file"
        )
    return {
        "kind": "file",
        "file": path,
        "node": node.said,
        "containers": containers,
        "settings": settings,
    }


def _node(file: Path | None, *, is_named: bool) -> Node:
    try:
        said = config.load(file)
    except UserError as error:
        if is_named:
            raise
        first = str(error).partition("\n")[0]
        return Node(config.Config(), f"{_BUILT_IN} ({first})", None)
    return Node(said, str(said.file) if said.file else _BUILT_IN, _driver(said))


def _driver(said: config.Config) -> Driver | None:
    try:
        return from_cdi(cdi.load(cdi_files.of_node(said.cdi, said.state_dir), yaml.safe_load))
    except (cdi.CdiError, OSError, yaml.YAMLError):
        return None


# --- a container ---


def _container(container: Container, file: File, node: Node) -> dict[str, Any]:
    mode = node.config.terms_of(container.document.namespace).dialects.mode
    request = request_of(container, strict=mode == "strict")
    try:
        there = at_node(container, file, terms_of=node.config.terms_of, driver=node.driver)
    except SpecError as error:
        raise UserError(f"{file.path}: {error}") from error
    unheard = [
        {
            **_at(found.value),
            **_key(found.word.source.kind, found.value, found.word.name),
            "translated_by": found.word.dialect.translated_by,
        }
        for found in request.unreachable
    ]
    return {
        "of": str(container.document),
        "name": container.name,
        "init": container.init,
        "line": container.line,
        "written": [*_own(container), *_vendors(container, request)],
        "wants": {key: asked.text for key, asked in request.asked.items()},
        "unreachable": unheard,
        "cards": _cards(there),
        "hears": _hears(there),
        "given": None if there.given is None else _given(there.given),
        "refused": there.refused,
        "problems": [str(_problem(one)) for one in request.problems],
        "notes": list(dict.fromkeys(_notes(container, request, there))),
    }


def _own(container: Container) -> Iterator[dict[str, Any]]:
    for name, value in container.annotations.items():
        if name.startswith(ANNOTATION_PREFIX):
            key = name[len(ANNOTATION_PREFIX) :]
            scope = key[len(_SCOPE) :].partition(".")[0] if key.startswith(_SCOPE) else ""
            known = KEYS.get(key.rpartition(".")[2])
            if scope and scope != container.name:
                means = f"nothing here: for {scope}"
            else:
                means = _canonical(known, value.text)
            yield _written("annotation", name, value, OURS, _meaning(known), means)
    for name, value in container.env.items():
        if is_quota(name):
            known = BY_ENV.get(name)
            means = _canonical(known, value.text)
            yield _written("env", name, value, OURS, _meaning(known), means)


def _meaning(key: Key | None) -> str:
    return "" if key is None else key.meaning


def _canonical(key: Key | None, text: str) -> str:
    if key is None:
        return "no key of gpushare"
    try:
        key.parse(text)
    except ValueError as error:
        return str(error)
    return f"{key.name}={text}"


def _vendors(container: Container, request: Request) -> Iterator[dict[str, Any]]:
    for spoken in request.spoken:
        for word in spoken.words:
            value = container.values(word.source.kind).get(word.name)
            means = spoken.meant.get(word.name, "")
            if value is not None:
                said = word.row.meaning
                title = spoken.dialect.title
                found = _written(word.source.kind, word.name, value, title, said, means)
                yield {**found, "reaches": word.row.reaches}


def _written(
    where: str, name: str, value: Value, vendor: str, meaning: str, means: str
) -> dict[str, Any]:
    return {
        **_at(value),
        **_key(where, value, name),
        "vendor": vendor,
        "meaning": meaning,
        "means": means,
        "reaches": True,
    }


def _at(value: Value) -> dict[str, Any]:
    return {"line": value.line, "column": value.column}


def _key(where: str, value: Value, name: str) -> dict[str, Any]:
    return {"where": where, "key": name, "value": value.text}


def _hears(there: AtNode) -> dict[str, Any]:
    if there.asked is None:
        return {}
    return {
        key: {"text": asked.text, "written": asked.shown, "source": str(asked.source)}
        for key, asked in there.asked.quota.asked.items()
    }


def _cards(there: AtNode) -> dict[str, Any] | None:
    """Return the cards that an engine passes beside all variables and annotations."""
    cards = None if there.asked is None else there.asked.cards
    if cards is None:
        return None
    named = [*cards.devices, *(f"/dev/nvidia{minor}" for minor in cards.minors)]
    count = None if cards.all_cards else cards.count or len(named)
    return {"source": cards.source, "count": count, "named": named}


def _given(given: Given) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": given.kind, "why": given.why, "count": given.count}
    if given.kind == "shared":
        data |= {
            "memory": _memory(given),
            "cores": given.cores,
            "policy": given.policy,
            "class": given.class_,
            "priority": given.priority,
        }
    return data


def _memory(given: Given) -> str:
    if given.memory_bytes is None:
        return f"{given.memory_percent} %"
    return exact_size(given.memory_bytes)


def _notes(container: Container, request: Request, there: AtNode) -> Iterator[str]:
    if there.asked is not None:
        yield from there.asked.quota.notes
    elif there.refused:
        yield from request.notes
    yield from there.notes
    unnamed = there.asked.quota.unnamed if there.asked is not None else None
    if unnamed is not None and sum(not one.init for one in container.pod.containers) > 1:
        yield _FIRST.format(what=unnamed.source)
    passed = handed_on(container)
    if passed:
        yield _NEEDS.format(names=", ".join(sorted(passed)))
    asks = bool(request.asked or (there.asked is not None and there.asked.quota.asked))
    if asks and container.document.kind != "oci" and not _named(container):
        yield _NO_CLASS.format(what="runtimeClassName" if container.in_cluster else "runtime")
    if container.unknown:
        yield f"{', '.join(container.unknown)}: the value is elsewhere, and was not read"


def _named(container: Container) -> str:
    """Return the runtime, or its class, that the manifest names."""
    return container.pod.runtime_class if container.in_cluster else container.runtime


def _problem(refusal: Refusal) -> QuotaError:
    return QuotaError(refusal.source, refusal.text, refusal.rule, refusal.fix)


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
