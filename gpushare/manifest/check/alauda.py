# SPDX-License-Identifier: Apache-2.0
"""Alauda's ConfigMaps of extended resources: one key each, `cf-crl-NAME-KEY` in kube-public."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpushare.manifest.check.finding import Finding, of_node, of_value
from gpushare.manifest.check.schemas import ALAUDA, ALAUDA_LABELS
from gpushare.manifest.check.shapes import check
from gpushare.manifest.file import Document
from gpushare.manifest.nodes import below

_PREFIX = "cf-crl-"


def alauda(document: Document) -> Iterator[Finding]:
    """Yield what is wrong with `document` where it is one of those ConfigMaps."""
    if document.kind != "ConfigMap" or not _is_one(document):
        return
    yield from check(document.root, ALAUDA, ())
    key = document.data.get("key")
    if key is not None and document.name.startswith(_PREFIX):
        ending = re.sub(r"[^a-z0-9]+", "-", key.text.lower()).strip("-")
        name = below(document.root, "metadata", "name")
        if not document.name.endswith(f"-{ending}") and name is not None:
            rule = f"does not end with its key, {ending}"
            fix = f"write {_PREFIX}NAME-{ending}"
            yield of_node("metadata.name", name, rule, fix, value=document.name)
    label, group = document.labels.get(ALAUDA_LABELS[1]), document.data.get("group")
    if label is not None and group is not None and label.text != group.text:
        rule = f'is not the label {ALAUDA_LABELS[1]}, "{label.text}"'
        yield of_value("data.group", group, rule, f"write {label.text}")


def _is_one(document: Document) -> bool:
    return document.name.startswith(_PREFIX) or not set(ALAUDA_LABELS).isdisjoint(document.labels)
