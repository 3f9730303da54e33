# SPDX-License-Identifier: Apache-2.0
"""Manifests of every vendor: each is explained, and what is converted is heard as it was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.cli.explain import file, told
from gpushare.cli.prose import WIDTH
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
        data = file.explained(str(path), None)
        long = [line for line in told.lines(data) if len(line) > WIDTH and " " in line.strip()]
        assert long == [], path.name


def test_what_was_converted_is_heard_as_it_was_meant() -> None:
    """By who reads the original, and by who makes the container of what `convert` made of it."""
    assert len(PAIRS) > 15
    for original, converted in PAIRS:
        before = file.explained(str(original), None)["containers"]
        after = file.explained(str(converted), None)["containers"]
        assert len(before) == len(after), original.name
        for meant, heard in zip(before, after, strict=True):
            wants = {
                key: text for key, text in meant["wants"].items() if (key, text) != ("count", "1")
            }
            hears = {key: asked["text"] for key, asked in heard["hears"].items()}
            hears = {key: text for key, text in hears.items() if (key, text) != ("count", "1")}
            assert hears == wants, (original.name, meant["name"])
            left = [row["key"] for row in heard["unreachable"] if row["where"] == "limit"]
            assert left == [], (original.name, meant["name"])


def test_what_holds_nothing_of_a_gpu_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("{}\n")
    with pytest.raises(UserError, match="no container and no setting"):
        file.explained(str(tmp_path / "empty.yaml"), None)
