# SPDX-License-Identifier: Apache-2.0
"""A diagram is what its source gives, and its texts are inside of its boxes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest
import yaml

from . import markdown


def _diagram() -> ModuleType:
    """Return docs/diagram.py: the name `docs` is that of this folder here."""
    spec = importlib.util.spec_from_file_location("diagram", markdown.ROOT / "docs/diagram.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


diagram = _diagram()
SOURCES = sorted(diagram.PICTURES.glob("*.yaml"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_committed_picture_is_drawn_from_its_source(source: Path) -> None:
    drawn = diagram.draw(source)
    assert source.with_suffix(".svg").read_text() == drawn, "run python docs/diagram.py"
    ET.fromstring(drawn)


def test_a_picture_that_differs_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert SOURCES
    (tmp_path / "a.yaml").write_text(SOURCES[0].read_text())
    monkeypatch.setattr(diagram, "PICTURES", tmp_path)
    assert diagram.main(["--check"]) == 1
    assert "a.svg differs from a.yaml" in capsys.readouterr().err
    assert diagram.main([]) == 0
    assert diagram.main(["--check"]) == 0


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_line_fits_into_its_box(source: Path) -> None:
    for box in yaml.safe_load(source.read_text())["boxes"]:
        width = box["at"][2] * diagram.CELL
        # Seven pixels for each of 13, and eight of a bold name.
        assert max(len(text) * (7, 8)[not place] for place, text in enumerate(box["text"])) < width
