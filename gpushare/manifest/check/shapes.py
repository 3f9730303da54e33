# SPDX-License-Identifier: Apache-2.0
"""What has another shape than its readers take: a schema's error in words, where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import yaml

from gpushare.manifest.check import schemas
from gpushare.manifest.check.finding import Finding, of_node
from gpushare.manifest.file import Document
from gpushare.manifest.nodes import MappingNode, below, entries, items, kind, word
from gpushare.marks import Place, key_of

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_TYPES: Final = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_NAMED: Final = {
    "annotations": "annotation",
    "labels": "label",
    "limits": "limit",
    "requests": "request",
    "environment": "env",
}


def shapes(document: Document) -> Iterator[Finding]:
    """Yield what of `document` has not the shape that it is read in."""
    if document.kind == "compose":
        for pod in document.pods:
            yield from check(pod.node, schemas.SERVICE, pod.place)
    elif document.kind == "ecs":
        for pod in document.pods:
            yield from check(pod.node, schemas.TASK_CONTAINER, pod.place, small=True)
    elif document.kind == "oci":
        yield from check(document.root, schemas.CONFIG, ())
    else:
        yield from _object(document)


def _object(document: Document) -> Iterator[Finding]:
    metadata = below(document.root, "metadata")
    seen = set()
    own: list[tuple[yaml.Node, Place]] = [] if metadata is None else [(metadata, ("metadata",))]
    of_pods = [pod.metadata for pod in document.pods if pod.metadata is not None]
    for node, place in (*own, *of_pods):
        if id(node) not in seen:
            seen.add(id(node))
            yield from check(node, schemas.METADATA, place)
    if document.kind == "ConfigMap":
        yield from check(document.root, schemas.DATA, ())
    yield from _pod(document)
    for pod in document.pods:
        described = [(one.node, one.place) for one in pod.containers]
        for key in ("initContainers", "containers"):
            listed = enumerate(items(below(pod.node, key)))
            described += [(item, (*pod.place, key, number)) for number, item in listed]
        for place, node in {place: node for node, place in described}.items():
            yield from check(node, schemas.CONTAINER, place)
            yield from _twice(below(node, "env"))


def _pod(document: Document) -> Iterator[Finding]:
    """Yield a pod whose containers are no list: none of them is looked at."""
    place = ("spec",) if document.kind == "Pod" else ("spec", "template", "spec")
    spec = below(document.root, *place)
    if spec is not None:
        yield from check(spec, schemas.POD, place)


def _twice(env: yaml.Node | None) -> Iterator[Finding]:
    """Yield variables that a list has a second time: the last counts, and who reads may not see."""
    first: dict[str, int] = {}
    for item in items(env):
        name = below(item, "name")
        if isinstance(name, yaml.ScalarNode):
            line = name.start_mark.line + 1
            if name.value in first:
                rule = f"is there twice, first in line {first[name.value]}"
                yield of_node(f"env {name.value}", name, rule, "keep one")
            first.setdefault(name.value, line)


def check(
    node: yaml.Node, schema: schemas.Schema, place: Place, *, small: bool = False
) -> Iterator[Finding]:
    """Yield where `node`, which stands at `place`, is not as `schema` says.

    `small`: keys are looked at with a small first letter.
    """
    # Imported here: the readers of manifests do without the validator.
    import jsonschema  # noqa: PLC0415

    validator = jsonschema.Draft202012Validator(schema)
    for error in validator.iter_errors(_plain(node, small=small)):
        yield from _told(error, node, place)


def _plain(node: yaml.Node, *, small: bool) -> Any:
    """Return `node` as a validator takes it; of a number only its kind counts."""
    if isinstance(node, MappingNode):
        return {
            _first_small(key) if small else key: _plain(entry.value, small=small)
            for key, entry in node.entries.items()
        }
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, small=small) for item in node.value]
    said = kind(node)
    if said == "a number":
        return 0.5 if {".", "e", "E"} & set(node.value) else 1
    return {"nothing": None, "true or false": True}.get(said, node.value)


def _first_small(key: str) -> str:
    return key[:1].lower() + key[1:]


def _told(error: ValidationError, root: yaml.Node, above: Place) -> Iterator[Finding]:
    """Yield each thing that `error` is about."""
    place: Place = tuple(error.absolute_path)
    node = _at(root, place)
    part, instance = error.schema, error.instance
    assert isinstance(part, Mapping)
    key = _key((*above, *place), root, place)
    value = (word(node) or "") if isinstance(node, yaml.ScalarNode) else ""
    if error.validator == "additionalProperties":
        known = list(part["properties"])
        for name, entry in entries(node).items():
            if _first_small(name) not in known and name not in known:
                yield of_node(f"{key}.{name}", entry.key, "no such key", _meant(name, known))
    elif error.validator == "required":
        for name in part["required"]:
            if isinstance(instance, dict) and name not in instance:
                yield of_node(key or name, node, f"has no {name}", _add(name, part))
    elif error.validator == "type":
        yield of_node(key, node, *_other_type(node, part), value=value)
    elif error.validator == "enum":
        choices = [str(one) for one in part["enum"]]
        fix = "write " + (choices[0] if len(choices) == 1 else "one of " + ", ".join(choices))
        close = get_close_matches(value, choices, n=1, cutoff=0.6) if len(choices) > 1 else []
        fix += f"; did you mean {close[0]}?" if close else ""
        yield of_node(key, node, "is not one of its values", fix, value=value)
    elif error.validator == "minLength":
        yield of_node(key, node, "is empty", "write a value")
    else:
        yield of_node(key, node, "is not of its form", f"write {part['form']}", value=value)


def _at(node: yaml.Node, place: Place) -> yaml.Node:
    for part in place:
        if isinstance(part, int):
            node = items(node)[part]
            continue
        found = entries(node)
        capital = part[:1].upper() + part[1:]
        node = (found.get(part) or found[capital]).value
    return node


def _key(place: Place, root: yaml.Node, beneath: Place) -> str:
    """Return what a user calls what is at `place`: `annotation gpushare.io/cores`, `env NAME`."""
    if len(place) > 1 and place[-2] in _NAMED and isinstance(place[-1], str):
        return f"{_NAMED[str(place[-2])]} {place[-1]}"
    if len(beneath) > 2 and beneath[-3] in {"env", "environment"} and place[-1] == "value":
        entry = _at(root, beneath[:-1])
        return f"env {word(below(entry, 'name')) or word(below(entry, 'Name'))}"
    return key_of(place)


def _other_type(node: yaml.Node, part: Mapping[str, Any]) -> tuple[str, str]:
    """Return the rule and the fix for what is of another type."""
    wanted = part["type"] if isinstance(part["type"], list) else [part["type"]]
    names = [_TYPES[one] for one in wanted if one != "null"]
    said = kind(node)
    of_yaml = " to YAML" if said == "true or false" else ""  # yes, on and no are, to some
    rule = f"is {said}{of_yaml}, and must be {' or '.join(names)}"
    if "string" in wanted and isinstance(node, yaml.ScalarNode):
        return rule, f'write "{node.value}"'
    if isinstance(node, yaml.ScalarNode) and node.style in {'"', "'"} and "integer" in wanted:
        return rule, f"write {node.value}"
    return rule, f"write {names[0]}"


def _meant(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "the keys here are " + ", ".join(known)


def _add(name: str, part: Mapping[str, Any]) -> str:
    choices = part.get("properties", {}).get(name, {}).get("enum", ())
    return f"add {name}: {choices[0]}" if choices else f"add {name}"
