# SPDX-License-Identifier: Apache-2.0
"""The shapes of what is read of manifests, as JSON schemas: as much as is read and no more.

Sources: Kubernetes API reference (core/v1), compose-spec, ECS API Reference, OCI runtime-spec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from gpushare.manifest.model import Document, ManifestFinding, node_finding, value_finding
from gpushare.text_position import KeyPath, key_of
from gpushare.yaml_nodes import (
    TYPE_NAMES,
    YamlNode,
    fields,
    items,
    kind_name,
    scalar_text,
    value_at,
)

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError


Schema = Mapping[str, Any]


def _mapping(
    properties: Schema, *, required: Sequence[str] = (), closed: bool = False, null: bool = False
) -> dict[str, Any]:
    """Return the schema of a mapping; `closed`: other keys are errors, `null`: it may be empty."""
    schema: dict[str, Any] = {"type": ["object", "null"] if null else "object"}
    if required:
        schema["required"] = list(required)
    if closed:
        schema["additionalProperties"] = False
    return {**schema, "properties": properties}


def _nested(schema: Schema, *keys: str) -> Schema:
    """Return the schema of `schema` beneath mappings with these keys."""
    for key in reversed(keys):
        schema = {"properties": {key: schema}}
    return schema


def _list(items: Schema, *, null: bool = True) -> Schema:
    return {"type": ["array", "null"] if null else "array", "items": items}


# All readers take an empty value for none.
_STRING: Final = {"type": "string"}
_NOT_EMPTY: Final = {"type": "string", "minLength": 1}
_TEXT: Final = {"type": ["string", "null"]}
_TEXTS: Final = {"type": ["object", "null"], "additionalProperties": _TEXT}
_QUANTITIES: Final = {
    "type": ["object", "null"],
    "additionalProperties": {"type": ["string", "number"]},
}
_LIST: Final = {"type": ["array", "null"]}
_LISTED: Final = {
    "type": ["object", "array", "null"],
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    "items": _STRING,
}

METADATA: Final[Schema] = _mapping(
    {"name": _TEXT, "namespace": _TEXT, "annotations": _TEXTS, "labels": _TEXTS}
)
POD: Final[Schema] = _mapping({"containers": _LIST, "initContainers": _LIST}, null=True)
_ENV: Final = {"name": _STRING, "value": _TEXT, "valueFrom": {}}
_RESOURCES: Final = {
    "limits": _QUANTITIES,
    "requests": _QUANTITIES,
    "claims": _list({"type": "object", "required": ["name"]}),
}
CONTAINER: Final[Schema] = _mapping(
    {
        "name": _TEXT,
        "image": _TEXT,
        "env": _list(_mapping(_ENV, required=["name"], closed=True)),
        "resources": _mapping(_RESOURCES, closed=True, null=True),
    }
)
DATA: Final[Schema] = _mapping({"data": _TEXTS})
#: Served since Kubernetes 1.25; current schedulers refuse the beta versions.
SCHEDULER: Final[Schema] = _mapping({"apiVersion": {"enum": ["kubescheduler.config.k8s.io/v1"]}})

_DEVICE: Final = _mapping(
    {
        "capabilities": _list(_STRING, null=False),
        "driver": _TEXT,
        "count": {"type": ["string", "integer"]},
        "device_ids": _list(_STRING, null=False),
    },
    required=["capabilities"],
)
SERVICE: Final[Schema] = _mapping(
    {
        "image": _TEXT,
        "runtime": _TEXT,
        "environment": _LISTED,
        "annotations": _LISTED,
        "labels": _LISTED,
        "deploy": _nested(_list(_DEVICE, null=False), "resources", "reservations", "devices"),
    }
)

# With the small first letters of the API; CloudFormation's capitals are made small before.
_MPS: Final = _mapping(
    {"memory": {"type": "integer"}, "maxComputePercent": {"type": "integer"}},
    required=["memory"],
    closed=True,
)
_REQUIREMENT: Final = {
    "type": {"enum": ["GPU", "InferenceAccelerator", "NeuronDevice"]},
    "value": _STRING,
    "sharingStrategy": _mapping({"nvidiaMps": _MPS}, required=["nvidiaMps"]),
}
TASK_CONTAINER: Final[Schema] = _mapping(
    {
        "environment": _list(_mapping({"name": _STRING, "value": _TEXT}, required=["name"])),
        "resourceRequirements": _list(_mapping(_REQUIREMENT, required=["type"])),
    }
)

CONFIG: Final[Schema] = _mapping(
    {
        "annotations": {"type": "object", "additionalProperties": _STRING},
        "process": _mapping({"env": _list(_STRING, null=False)}),
    }
)

#: Alauda's console reads which extended resources there are from ConfigMaps of this form. Its
#: labels have one of two domains: gpushare/manifest/alauda.py.
ALAUDA_DOMAINS: Final = ("features.alauda.io", "features.cpaas.io")
ALAUDA_LABELS: Final = ("type", "group", "enabled")
_ALAUDA_NAME: Final = {
    "type": "string",
    "pattern": "^cf-crl-[a-z0-9-]+$",
    "form": "cf-crl-NAME-KEY in small letters, with - for all else",
}
_ALAUDA_VALUES: Final = (
    {"enum": ["CustomResourceLimitation"]},
    _NOT_EMPTY,
    {"enum": ["true", "false"]},
)
_ALAUDA_DATA: Final = {
    "key": _NOT_EMPTY,
    "dataType": _NOT_EMPTY,
    "defaultValue": _STRING,
    "resourceUnit": _STRING,
    "labelZh": _STRING,
    "labelEn": _STRING,
    "descriptionZh": _STRING,
    "descriptionEn": _STRING,
    "group": _NOT_EMPTY,
    "groupI18n": _STRING,
    "limits": {"enum": ["disabled", "required", "optional"]},
    "requests": {"enum": ["disabled", "required", "fromLimits"]},
    "relatedResources": _STRING,
    "excludeResources": _STRING,
    "runtimeClassName": _STRING,
}


def alauda(domain: str) -> Schema:
    """Return the schema of such a ConfigMap, with the labels of `domain`."""
    names = [f"{domain}/{name}" for name in ALAUDA_LABELS]
    metadata = {
        "name": _ALAUDA_NAME,
        "namespace": {"enum": ["kube-public"]},
        "labels": _mapping(dict(zip(names, _ALAUDA_VALUES, strict=True)), required=names),
    }
    required = ["key", "dataType", "group", "limits", "requests"]
    return _mapping(
        {
            "metadata": _mapping(metadata, required=["name", "namespace", "labels"]),
            "data": _mapping(_ALAUDA_DATA, required=required, closed=True),
        },
        required=["metadata", "data"],
    )


# --- errors of a schema in words, with their position ---

_NAMED: Final = {
    "annotations": "annotation",
    "labels": "label",
    "limits": "limit",
    "requests": "request",
    "environment": "env",
}


def check_shape(document: Document) -> Iterator[ManifestFinding]:
    """Yield the parts of `document` that do not have the shape that its readers need."""
    if document.kind == "compose":
        for pod in document.pods:
            yield from check_schema(pod.node, SERVICE, pod.place)
    elif document.kind == "ecs":
        for pod in document.pods:
            yield from check_schema(pod.node, TASK_CONTAINER, pod.place, small=True)
    elif document.kind == "oci":
        yield from check_schema(document.root, CONFIG, ())
    else:
        yield from _check_object(document)


def _check_object(document: Document) -> Iterator[ManifestFinding]:
    metadata = value_at(document.root, "metadata")
    positions = set()
    own: list[tuple[YamlNode, KeyPath]] = [] if metadata is None else [(metadata, ("metadata",))]
    of_pods = [pod.metadata for pod in document.pods if pod.metadata is not None]
    for node, place in (*own, *of_pods):
        if id(node) not in positions:
            positions.add(id(node))
            yield from check_schema(node, METADATA, place)
    if document.kind == "ConfigMap":
        yield from check_schema(document.root, DATA, ())
    if document.kind == "KubeSchedulerConfiguration":
        yield from check_schema(document.root, SCHEDULER, ())
    yield from _check_pod(document)
    for pod in document.pods:
        described = [(container.node, container.place) for container in pod.containers]
        for key in ("initContainers", "containers"):
            listed = enumerate(items(value_at(pod.node, key)))
            described += [(item, (*pod.place, key, number)) for number, item in listed]
        for place, node in {place: node for node, place in described}.items():
            yield from check_schema(node, CONTAINER, place)
            yield from _duplicate_variables(value_at(node, "env"))


def _check_pod(document: Document) -> Iterator[ManifestFinding]:
    """Yield a pod whose containers are not a list: they cannot be checked."""
    place = ("spec",) if document.kind == "Pod" else ("spec", "template", "spec")
    spec = value_at(document.root, *place)
    if spec is not None:
        yield from check_schema(spec, POD, place)


def _duplicate_variables(env: YamlNode | None) -> Iterator[ManifestFinding]:
    """Yield variables that a list has twice: only the last one counts."""
    first: dict[str, int] = {}
    for item in items(env):
        name = value_at(item, "name")
        if name is not None and name.kind == "scalar":
            if name.text in first:
                rule = f"is a duplicate of the one in line {first[name.text]}"
                yield node_finding(f"env {name.text}", name, rule, "keep one")
            first.setdefault(name.text, name.line)


def check_schema(
    node: YamlNode, schema: Schema, place: KeyPath, *, small: bool = False
) -> Iterator[ManifestFinding]:
    """Yield where `node`, which is at `place`, does not match `schema`.

    `small`: the first letter of a key may be a capital.
    """
    # Imported here: the readers of manifests do without the validator.
    import jsonschema  # noqa: PLC0415

    validator = jsonschema.Draft202012Validator(schema)
    for error in validator.iter_errors(_plain(node, small=small)):
        yield from _findings(error, node, place)


def _plain(node: YamlNode, *, small: bool) -> Any:
    """Return `node` as a validator takes it; of a number only its kind counts."""
    if node.kind == "mapping":
        return {
            _first_small(key) if small else key: _plain(entry.value, small=small)
            for key, entry in node.fields.items()
        }
    if node.kind == "sequence":
        return [_plain(item, small=small) for item in items(node)]
    kind = kind_name(node)
    if kind == "a number":
        return 0.5 if {".", "e", "E"} & set(node.text) else 1
    return {"nothing": None, "true or false": True}.get(kind, node.text)


def _first_small(key: str) -> str:
    return key[:1].lower() + key[1:]


def _findings(error: ValidationError, root: YamlNode, above: KeyPath) -> Iterator[ManifestFinding]:
    """Yield the findings that `error` stands for."""
    place: KeyPath = tuple(error.absolute_path)
    node = _at(root, place)
    part, instance = error.schema, error.instance
    assert isinstance(part, Mapping)
    key = _key((*above, *place), root, place)
    value = scalar_text(node) or ""
    if error.validator == "additionalProperties":
        known = list(part["properties"])
        for name, entry in fields(node).items():
            if _first_small(name) not in known and name not in known:
                yield node_finding(f"{key}.{name}", entry.key, "unknown key", _suggest(name, known))
    elif error.validator == "required":
        for name in part["required"]:
            if isinstance(instance, dict) and name not in instance:
                yield node_finding(key or name, node, f"has no {name}", _add(name, part))
    elif error.validator == "type":
        yield node_finding(key, node, *_other_type(node, part), value=value)
    elif error.validator == "enum":
        choices = [str(choice) for choice in part["enum"]]
        fix = "write " + (choices[0] if len(choices) == 1 else "one of " + ", ".join(choices))
        close = get_close_matches(value, choices, n=1, cutoff=0.6) if len(choices) > 1 else []
        fix += f"; did you mean {close[0]}?" if close else ""
        yield node_finding(key, node, "is not a valid value", fix, value=value)
    elif error.validator == "minLength":
        yield node_finding(key, node, "is empty", "write a value")
    else:
        yield node_finding(key, node, "has the wrong form", f"write {part['form']}", value=value)


def _at(node: YamlNode, place: KeyPath) -> YamlNode:
    for part in place:
        if isinstance(part, int):
            node = node.items[part].resolved
            continue
        children = fields(node)
        capital = part[:1].upper() + part[1:]
        node = (children.get(part) or children[capital]).value
    return node


def _key(place: KeyPath, root: YamlNode, beneath: KeyPath) -> str:
    """Return the name that a user knows for `place`: `annotation gpushare.io/cores`, `env NAME`."""
    if len(place) > 1 and place[-2] in _NAMED and isinstance(place[-1], str):
        return f"{_NAMED[str(place[-2])]} {place[-1]}"
    if len(beneath) > 2 and beneath[-3] in {"env", "environment"} and place[-1] == "value":
        entry = _at(root, beneath[:-1])
        return f"env {scalar_text(value_at(entry, 'name')) or scalar_text(value_at(entry, 'Name'))}"
    return key_of(place)


def _other_type(node: YamlNode, part: Mapping[str, Any]) -> tuple[str, str]:
    """Return the rule and the fix for what is of another type."""
    wanted = part["type"] if isinstance(part["type"], list) else [part["type"]]
    names = [TYPE_NAMES[one] for one in wanted if one != "null"]
    kind = kind_name(node)
    of_yaml = " to YAML" if kind == "true or false" else ""  # yes, on and no are, to some
    rule = f"is {kind}{of_yaml}, but must be {' or '.join(names)}"
    if "string" in wanted and node.kind == "scalar":
        return rule, f'write "{node.text}"'
    if node.kind == "scalar" and node.style in {'"', "'"} and "integer" in wanted:
        return rule, f"write {node.text}"
    return rule, f"write {names[0]}"


def _suggest(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "valid keys are " + ", ".join(known)


def _add(name: str, part: Mapping[str, Any]) -> str:
    choices = part.get("properties", {}).get(name, {}).get("enum", ())
    return f"add {name}: {choices[0]}" if choices else f"add {name}"


_ALAUDA_PREFIX: Final = "cf-crl-"


def check_alauda(document: Document) -> Iterator[ManifestFinding]:
    """Yield the errors in a ConfigMap of Alauda: one extended resource, `cf-crl-NAME-KEY`.

    Alauda's own documents write the KEY with and without its domain.
    """
    domains = _label_domains(document)
    if document.kind != "ConfigMap" or not (domains or document.name.startswith(_ALAUDA_PREFIX)):
        return
    for domain in domains or ALAUDA_DOMAINS[:1]:
        yield from check_schema(document.root, alauda(domain), ())
    key = document.data.get("key")
    if key is not None and document.name.startswith(_ALAUDA_PREFIX):
        ending, short = _in_name(key.text), _in_name(key.text.rpartition("/")[2])
        name = value_at(document.root, "metadata", "name")
        if not document.name.endswith((f"-{ending}", f"-{short}")) and name is not None:
            rule = f"must end with its key, {ending}"
            fix = f"write {_ALAUDA_PREFIX}NAME-{ending}"
            yield node_finding("metadata.name", name, rule, fix, value=document.name)
    group = document.data.get("group")
    for domain in domains:
        label = document.labels.get(f"{domain}/group")
        if label is not None and group is not None and label.text != group.text:
            rule = f'differs from the label {domain}/group, "{label.text}"'
            yield value_finding("data.group", group, rule, f"write {label.text}")


def _in_name(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")


def _label_domains(document: Document) -> list[str]:
    """Return the domains of Alauda's labels in `document`."""
    return [
        domain
        for domain in ALAUDA_DOMAINS
        if any(f"{domain}/{name}" in document.labels for name in ALAUDA_LABELS)
    ]
