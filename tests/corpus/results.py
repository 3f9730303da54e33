# SPDX-License-Identifier: Apache-2.0
"""What becomes of each manifest of the corpus, in a cluster with admission policies and outside.

What is not true is not returned: AssertionError if the policies make another request of a manifest
than `gpushare convert` does, or if no reason is known why they leave it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import yaml

from gpushare.manifest import read
from gpushare.manifest.convert.requests import meaning_of
from gpushare.manifest.model import ManifestFile
from gpushare.manifest.request import request_of, request_on_node, settings_of
from gpushare.protocol.kubernetes import NodeMode
from gpushare.quota.dialects.vendor_key import VendorValue
from gpushare.quota.request_policy import RequestPolicy
from tools.admission import Object, Request, decide, failing

from .cases import CorpusManifest, conversion
from .claims import LEFT_OUT, claimed, meant
from .pods import allocated_like, converted, on_node, pods

MANIFESTS: Final = Path(__file__).resolve().parents[2] / "configs/kubernetes"
#: In which a policy translates pods.
MODES: Final[tuple[NodeMode, ...]] = ("annotations", "plugin", "dra")
UNCHANGED: Final = "unchanged"
AMOUNTS: Final = "amounts only"


def named(case: CorpusManifest) -> tuple[str, str, str]:
    """Return the system, the manifest, and the keys that make its request, as in a table."""
    values = _values(case)
    settings = [one.word for document in case.file.documents for one in settings_of(document)]
    systems = dict.fromkeys(value.dialect.title for value in (*values, *settings))
    keys = dict.fromkeys(f"`{value.name}`" for value in values)
    return ", ".join(systems), f"`{case}`", ", ".join(keys)


def in_mode(mode: NodeMode, cases: Sequence[CorpusManifest]) -> dict[str, str]:
    """Return what becomes of the pods of manifests on nodes in that mode, by manifest."""
    return through(policies(mode), mode, cases)


def through(
    applied: Sequence[Object], mode: NodeMode, cases: Sequence[CorpusManifest]
) -> dict[str, str]:
    """Return what becomes of the manifests through some policies; AssertionError: see above."""
    requests = [Request(pod) for case in cases for pod in pods(case)]
    decisions = iter(decide([failing(policy) for policy in applied], requests))
    found = {}
    for case in cases:
        made = [next(decisions) for _ in pods(case)]
        assert not [one.refused for one in made if one.refused], (case, mode, made)
        after = [one.object for one in made]
        if not any(one.changed for one in made):
            found[str(case)] = f"no: {_why_not(case, mode)}"
            continue
        expected = converted(case)
        assert expected is not None, case
        if mode == "dra":
            amounts = [one for pod in after for one in claimed(pod)]
            assert amounts == list(map(meant, on_node(expected, "annotations"))), case
            is_whole = not any(LEFT_OUT in pod["metadata"].get("annotations", {}) for pod in after)
            found[str(case)] = UNCHANGED if is_whole else AMOUNTS
            continue
        read_there = on_node(after, mode)
        assert read_there == on_node(allocated_like(expected, after), mode), (case, mode)
        found[str(case)] = UNCHANGED
    return found


@cache
def policies(mode: NodeMode) -> list[Object]:
    """Return the admission policies of a mode, as they are applied, but for those that warn."""
    bodies = [
        body
        for path in sorted((MANIFESTS / mode).glob("*.yaml"))
        for body in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]
    warning = {
        body["spec"]["policyName"]
        for body in bodies
        if body.get("spec", {}).get("validationActions") == ["Warn"]
    }
    return [
        body
        for body in bodies
        if body["kind"].endswith("AdmissionPolicy") and body["metadata"]["name"] not in warning
    ]


def by_convert(case: CorpusManifest) -> str:
    """Return whether `gpushare convert` converts the manifest to keys of gpushare."""
    made = conversion(case)
    is_converted = not isinstance(made, str) and made.changed
    return "yes" if is_converted else f"no: {_why_not(case, None)}"


def outside(case: CorpusManifest) -> str:
    """Return what becomes of a manifest that is not for Kubernetes."""
    made = conversion(case)
    assert not isinstance(made, str), case
    if _effective(case.file) == _effective(read(case.path.name, made.text)):
        return UNCHANGED
    assert {value.row.where for value in _values(case)} == {"task"}, case
    return "no: task"


def _effective(file: ManifestFile) -> list[dict[str, object]]:
    found = []
    for container in file.containers:
        node = request_on_node(container, file, terms_of=lambda _: RequestPolicy())
        assert node.requested is not None, node.refused
        found.append(meaning_of(dict(node.requested.quota.requested)))
    return found


def _why_not(case: CorpusManifest, mode: NodeMode | None) -> str:
    """Return the reason, a word of the page; without a mode, that of `convert`."""
    values = _values(case)
    if any(value.row.where == "claim" for value in values):
        return "claim"
    if isinstance(conversion(case), str):
        assert not {"memory", "count"} & {value.row.key for value in values}, case
        return "no amount"
    assert mode is not None, case
    if {value.dialect.name for value in values} == {"nvidia"}:
        return "NVIDIA's plugin"
    if mode == "dra":
        return "not in the limits"
    assert mode == "plugin", case
    meanings = [
        meaning_of(layer)
        for one in case.file.containers
        if (layer := request_of(one, strict=False).requested)
    ]
    if any(one.get("memory_percent") for one in meanings):
        return "percentage"
    if any(one.get("count") != 1 or one.get("kind") == "exclusive" for one in meanings):
        return "whole or several cards"
    amounts = [value.row for value in values if value.row.key == "memory"]
    assert all(row.where != "limit" or row.pattern for row in amounts), case
    return "not in the limits"


@cache
def _values(case: CorpusManifest) -> list[VendorValue]:
    """Return the other systems' values that make the request, in the order of the file."""
    return [
        value
        for container in case.file.containers
        for dialect in request_of(container, strict=False).dialects
        for value in dialect.words
        if value.row.key and dialect.layer
    ]


def node_labels(case: CorpusManifest) -> str:
    """Return the other systems' node labels that the pods select, as `convert` reports them."""
    made = conversion(case)
    keys = () if isinstance(made, str) else {one.key for one in made.notes}
    names = (key.partition("nodeSelector ") for key in sorted(keys))
    return ", ".join(f"`{name}`" for before, start, name in names if start and not before)
