# SPDX-License-Identifier: Apache-2.0
"""The shapes of what is read of manifests, as JSON schemas: as much as is read and no more.

Sources: Kubernetes API reference (core/v1), compose-spec, ECS API Reference, OCI runtime-spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

# An empty value is taken by all readers for none.
_TEXT: Final = {"type": ["string", "null"]}
_TEXTS: Final = {"type": ["object", "null"], "additionalProperties": _TEXT}
_QUANTITIES: Final = {
    "type": ["object", "null"],
    "additionalProperties": {"type": ["string", "number"]},
}

METADATA: Final[Schema] = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "namespace": _TEXT,
        "annotations": _TEXTS,
        "labels": _TEXTS,
    },
}

_LIST: Final = {"type": ["array", "null"]}
POD: Final[Schema] = {
    "type": ["object", "null"],
    "properties": {"containers": _LIST, "initContainers": _LIST},
}

CONTAINER: Final[Schema] = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "image": _TEXT,
        "env": {
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {"name": {"type": "string"}, "value": _TEXT, "valueFrom": {}},
            },
        },
        "resources": {
            "type": ["object", "null"],
            "additionalProperties": False,
            "properties": {
                "limits": _QUANTITIES,
                "requests": _QUANTITIES,
                "claims": {
                    "type": ["array", "null"],
                    "items": {"type": "object", "required": ["name"]},
                },
            },
        },
    },
}

DATA: Final[Schema] = {"type": "object", "properties": {"data": _TEXTS}}

_LISTED: Final = {
    "type": ["object", "array", "null"],
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    "items": {"type": "string"},
}

SERVICE: Final[Schema] = {
    "type": "object",
    "properties": {
        "image": _TEXT,
        "runtime": _TEXT,
        "environment": _LISTED,
        "annotations": _LISTED,
        "labels": _LISTED,
        "deploy": {
            "properties": {
                "resources": {
                    "properties": {
                        "reservations": {
                            "properties": {
                                "devices": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "required": ["capabilities"],
                                        "properties": {
                                            "capabilities": {
                                                "type": "array",
                                                "items": {"type": "string"},
                                            },
                                            "driver": _TEXT,
                                            "count": {"type": ["string", "integer"]},
                                            "device_ids": {
                                                "type": "array",
                                                "items": {"type": "string"},
                                            },
                                        },
                                    },
                                }
                            }
                        }
                    }
                }
            }
        },
    },
}

# With the small first letters of the API; CloudFormation's capitals are made small before.
TASK_CONTAINER: Final[Schema] = {
    "type": "object",
    "properties": {
        "environment": {
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "value": _TEXT},
            },
        },
        "resourceRequirements": {
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "required": ["type"],
                "properties": {
                    "type": {"enum": ["GPU", "InferenceAccelerator", "NeuronDevice"]},
                    "value": {"type": "string"},
                    "sharingStrategy": {
                        "type": "object",
                        "required": ["nvidiaMps"],
                        "properties": {
                            "nvidiaMps": {
                                "type": "object",
                                "required": ["memory"],
                                "additionalProperties": False,
                                "properties": {
                                    "memory": {"type": "integer"},
                                    "maxComputePercent": {"type": "integer"},
                                },
                            }
                        },
                    },
                },
            },
        },
    },
}

CONFIG: Final[Schema] = {
    "type": "object",
    "properties": {
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        "process": {
            "type": "object",
            "properties": {"env": {"type": "array", "items": {"type": "string"}}},
        },
    },
}

#: Alauda's console reads which extended resources there are from ConfigMaps of this form.
ALAUDA_LABELS: Final = (
    "features.alauda.io/type",
    "features.alauda.io/group",
    "features.alauda.io/enabled",
)
ALAUDA: Final[Schema] = {
    "type": "object",
    "required": ["metadata", "data"],
    "properties": {
        "metadata": {
            "type": "object",
            "required": ["name", "namespace", "labels"],
            "properties": {
                "name": {
                    "type": "string",
                    "pattern": "^cf-crl-[a-z0-9-]+$",
                    "form": "cf-crl-NAME-KEY in small letters, with - for all else",
                },
                "namespace": {"enum": ["kube-public"]},
                "labels": {
                    "type": "object",
                    "required": list(ALAUDA_LABELS),
                    "properties": {
                        ALAUDA_LABELS[0]: {"enum": ["CustomResourceLimitation"]},
                        ALAUDA_LABELS[1]: {"type": "string", "minLength": 1},
                        ALAUDA_LABELS[2]: {"enum": ["true", "false"]},
                    },
                },
            },
        },
        "data": {
            "type": "object",
            "required": ["key", "dataType", "group", "limits", "requests"],
            "additionalProperties": False,
            "properties": {
                "key": {"type": "string", "minLength": 1},
                "dataType": {"type": "string", "minLength": 1},
                "defaultValue": {"type": "string"},
                "descriptionZh": {"type": "string"},
                "descriptionEn": {"type": "string"},
                "group": {"type": "string", "minLength": 1},
                "limits": {"enum": ["disabled", "required", "optional"]},
                "requests": {"enum": ["disabled", "required", "fromLimits"]},
            },
        },
    },
}
