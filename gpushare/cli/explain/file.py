# SPDX-License-Identifier: Apache-2.0
"""A manifest or a config.json: what its keys mean, which of them are heard, and what is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from gpushare import config
from gpushare.cli.prose import wrapped
from gpushare.errors import UserError
from gpushare.host import cdi_files
from gpushare.manifest import read, request_of, settings_of
from gpushare.manifest.at_node import at_node, handed_on
from gpushare.oci import cdi
from gpushare.oci.driver import Driver, from_cdi
from gpushare.oci.spec import SpecError
from gpushare.quota import QuotaError
from gpushare.quota.errors import quoted
from gpushare.quota.keys import ANNOTATION_PREFIX, BY_ENV, KEYS, Key, is_quota
from gpushare.quota.size import exact_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpushare.manifest import Container, Document, File, Refusal, Request, Value
    from gpushare.manifest.at_node import AtNode
    from gpushare.quota import Given

OURS: Final = "gpushare"
_SCOPE: Final = "container."
_BUILT_IN: Final = "gpushare's own defaults: no gpushare.yaml is readable here"
_NEEDS: Final = (
    "an engine hands on a pod's annotations that its configuration names, gpushare.io/* after "
    "`gpushare runtime configure`; {names} has to be added to pod_annotations there"
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


def explained(path: str, file: Path | None, text: str | None = None) -> dict[str, Any]:
    """Return what the manifest at `path` says, by container, for a node configured by `file`.

    `text` is what it would have in it, where it is not to be read.

    ManifestError, ConfigError, and UserError for what holds nothing that is known.
    """
    manifest = read(path, text)
    node = _node(file)
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


def _node(file: Path | None) -> Node:
    try:
        said = config.load(file)
    except UserError:
        if file is not None:
            raise
        return Node(config.Config(), _BUILT_IN, None)
    found = said.file or (file if file is not None else None)
    return Node(said, str(found) if found else _BUILT_IN, _driver(said))


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


# --- as text ---


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield what explained() returns, to be read."""
    for container in data["containers"]:
        yield from _told(container)
        yield ""
    for setting in data["settings"]:
        said = f"{_shown(setting)} ({setting['vendor']}): {setting['meaning']}"
        here = f" Here: {setting['instead']}." if setting["instead"] else ""
        yield from wrapped(f"{setting['of']}, line {setting['line']}: {said}{here}", rest="  ")
    yield from wrapped(
        f"Read by {data['node']}. What an operator set for a container that runs, and what the "
        "cards have left, is not looked at: `gpushare inspect NAME`, `gpushare ls`."
    )


def _told(container: Mapping[str, Any]) -> Iterator[str]:
    kind = "init container" if container["init"] else "container"
    named = f"{kind} {container['name']}" if container["name"] else kind
    of = f"{container['of']}, " if container["of"] != "oci" else ""
    yield f"{of}{named} (line {container['line']})"
    yield from told(container, "It says")


def told(container: Mapping[str, Any], heading: str) -> Iterator[str]:
    """Yield what is known of a container; what it says stands below `heading`."""
    yield from _block(heading, map(_meant, container["written"]), none="nothing of a GPU")
    yield from _block("No runtime hears", map(_unheard, container.get("unreachable", ())))
    hears = [_heard(key, asked) for key, asked in container["hears"].items()]
    heard = {key: asked["text"] for key, asked in container["hears"].items()}
    wanted = container.get("wants") or {}
    if wanted and wanted != heard:
        wants = " ".join(f"{key}={text}" for key, text in wanted.items())
        yield from _block("All of it asks for", [wants])
    yield from _block("A node hears", hears, none="" if container["refused"] else "nothing")
    given = container["given"]
    yield from _block("It gives", [_share(given)] if given else [])
    refused = container["refused"]
    yield from _block("It refuses", [refused] if refused else [])
    wrong = [text for text in container["problems"] if text != refused]
    yield from _block("Wrong in it, as `gpushare validate` says with more", wrong)
    yield from _block("To know", container["notes"])


def _block(heading: str, items: Any, none: str = "") -> Iterator[str]:
    said = list(items) or ([none] if none else [])
    if said:
        yield f"  {heading}"
        for item in said:
            yield from wrapped(item, "    ", "      ")


def _shown(row: Mapping[str, Any]) -> str:
    return f"{row['where']} {row['key']} {quoted(row['value'])}"


def _meant(row: Mapping[str, Any]) -> str:
    means = f" -> {row['means']}" if row["means"] else ""
    said = f" {row['meaning']}" if row["meaning"] else ""
    line = f"line {row['line']}: " if "line" in row else ""
    return f"{line}{_shown(row)} ({row['vendor']}):{said}{means}"


def _unheard(row: Mapping[str, Any]) -> str:
    by = f": {row['translated_by']}" if row["translated_by"] else ""
    return f"{row['where']} {row['key']}{by}"


def _heard(key: str, asked: Mapping[str, Any]) -> str:
    written = "" if asked["written"] == asked["text"] else f" {quoted(asked['written'])}"
    return f"{key}={asked['text']} from {asked['source']}{written}"


def _problem(refusal: Refusal) -> QuotaError:
    return QuotaError(refusal.source, refusal.text, refusal.rule, refusal.fix)


def _share(given: Mapping[str, Any]) -> str:
    if given["kind"] == "none":
        return f"no GPU: {given['why']}" if not given["why"].startswith("no GPU") else given["why"]
    count = given["count"]
    cards = "every card" if count is None else f"{count} card{'s' if count != 1 else ''}"
    if given["kind"] == "whole":
        return f"{cards}, whole: {given['why']}"
    each = "" if count == 1 else " each"
    cores = f" and {given['cores']} % of the compute" if given["cores"] else ""
    order = given["class"] if given["class"] == "online" else f"offline {given['priority']}"
    return f"{given['memory']}{cores} of {cards}{each}, {given['policy']}, {order}"
