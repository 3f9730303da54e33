# SPDX-License-Identifier: Apache-2.0
"""Manifests of every vendor: each is explained, and its converted form has the same request."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.cli import explain
from gpushare.cli.explain import manifest
from gpushare.cli.text import WIDTH
from gpushare.errors import UserError

CORPUS = Path(__file__).parents[2] / "corpus"
CONVERTED = ".to-gpushare.yaml"
MANIFESTS = sorted(CORPUS.rglob("*.yaml"))
PAIRS = [
    (original, converted)
    for converted in MANIFESTS
    if converted.name.endswith(CONVERTED)
    and (original := converted.with_name(converted.name.replace(CONVERTED, ".yaml"))).is_file()
]


def test_every_manifest_is_explained_in_lines_that_fit() -> None:
    assert len(MANIFESTS) > 50
    for path in MANIFESTS:
        data = manifest.explain_manifest(str(path), None)
        long = [
            line
            for line in explain.manifest_lines(data)
            if len(line) > WIDTH and " " in line.strip()
        ]
        assert long == [], path.name


def test_a_converted_manifest_has_the_same_request() -> None:
    """By the reader of the original, and by the create of what `convert` made of it."""
    assert len(PAIRS) > 15
    for original, converted in PAIRS:
        before = manifest.explain_manifest(str(original), None)["containers"]
        after = manifest.explain_manifest(str(converted), None)["containers"]
        assert len(before) == len(after), original.name
        for meant, heard in zip(before, after, strict=True):
            wants = {
                key: text
                for key, text in meant["combined"].items()
                if (key, text) != ("count", "1")
            }
            hears = {key: asked["text"] for key, asked in heard["applied"].items()}
            hears = {key: text for key, text in hears.items() if (key, text) != ("count", "1")}
            assert hears == wants, (original.name, meant["name"])
            left = [row["key"] for row in heard["ignored"] if row["where"] == "limit"]
            assert left == [], (original.name, meant["name"])


def test_a_manifest_without_gpu_keys_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("{}\n")
    with pytest.raises(UserError, match="no container and no GPU setting"):
        manifest.explain_manifest(str(tmp_path / "empty.yaml"), None)
