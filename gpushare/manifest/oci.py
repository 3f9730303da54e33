# SPDX-License-Identifier: Apache-2.0
"""A container's config.json. Source: OCI runtime-spec, config.md."""

from __future__ import annotations

import yaml

from gpushare.manifest.file import Container, Document, Pod
from gpushare.manifest.nodes import below, entries, word
from gpushare.manifest.values import mapping, pairs
from gpushare.quota import pod_of


def is_oci(root: yaml.Node) -> bool:
    """Whether `root` is that of a config.json."""
    return "ociVersion" in entries(root) and "process" in entries(root)


def read(root: yaml.Node) -> Document:
    """Return the document of a config.json, with its one container."""
    document = Document("oci", root)
    annotations = mapping(below(root, "annotations"), ("annotations",))
    pod = Pod(document, (), root, annotations)
    around = pod_of({name: value.text for name, value in annotations.items()})
    pod.containers.append(
        Container(
            name=around.container if around else word(below(root, "hostname")) or "",
            place=(),
            node=root,
            pod=pod,
            env=pairs(below(root, "process", "env"), ("process", "env")),
        )
    )
    document.pods.append(pod)
    return document
