# SPDX-License-Identifier: Apache-2.0
"""The shapes of what is read of manifests, as JSON schemas: as much as is read and no more.

Sources: Kubernetes API reference (core/v1), compose-spec, ECS API Reference, OCI runtime-spec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Schema = Mapping[str, Any]


def _mapping(
    properties: Schema, *, required: Sequence[str] = (), closed: bool = False, null: bool = False
) -> dict[str, Any]:
    """Return the schema of a mapping; `closed`: other keys are errors, `null`: it may be empty."""
    found: dict[str, Any] = {"type": ["object", "null"] if null else "object"}
    if required:
        found["required"] = list(required)
    if closed:
        found["additionalProperties"] = False
    return {**found, "properties": properties}


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
