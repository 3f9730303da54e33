# SPDX-License-Identifier: Apache-2.0
"""From a file's text to what it describes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from gpushare.manifest import compose_file, ecs, kubernetes, oci
from gpushare.manifest.errors import ManifestError
from gpushare.manifest.file import STDIN, Document, File
from gpushare.manifest.nodes import MAX_BYTES, MappingNode, compose, entries
from gpushare.marks import NotText, read_text, text_of

_WHAT: Final = "manifest"


def read(path: str | Path, text: str | None = None) -> File:
    """Return what the file at `path` describes, or `text` under that name; `-` is standard input.

    ManifestError: it cannot be read, is no YAML or JSON, or is too much of it.
    """
    path = str(path)
    if text is None:
        text = _text(path)
    composed = compose(text, path)
    kinds = kubernetes.Reader(text, path)
    documents = [document for root in composed.roots for document in _documents(root, kinds)]
    _give_claims(documents)
    return File(path, text, tuple(documents), composed.twice)


def _text(path: str) -> str:
    try:
        if path == STDIN:
            return text_of(sys.stdin.buffer, MAX_BYTES, _WHAT)
        return read_text(Path(path), MAX_BYTES, _WHAT)
    except NotText as error:
        raise ManifestError(path, error.fault) from error


def _documents(root: yaml.Node, kinds: kubernetes.Reader) -> Iterator[Document]:
    if not isinstance(root, MappingNode):
        return  # nothing between two lines of dashes, or a text that is no manifest
    if oci.is_oci(root):
        yield oci.read(root)
    elif compose_file.is_compose(root):
        yield compose_file.read(root)
    elif ecs.is_ecs(root):
        yield ecs.read(root)
    elif "kind" not in entries(root) and (said := kubernetes.plugin(root, ())):
        yield Document("device-plugin", root, plugin=said)
    else:
        yield from kinds.read(root)


def _give_claims(documents: list[Document]) -> None:
    """Give each container what the claims ask that it names, where they are in the same file."""
    claims = {
        (document.kind, document.name): document.claim
        for document in documents
        if document.kind in {"ResourceClaim", "ResourceClaimTemplate"}
    }
    for container in (one for document in documents for one in document.containers):
        for name in container.claims:
            asked = claims.get(container.pod.claims.get(name, ("", "")), {})
            container.claim = {**container.claim, **asked}
