# SPDX-License-Identifier: Apache-2.0
"""README.zh-CN.md says what README.md says: headings, commands, figures and links, by section."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass

import pytest

from . import markdown

ENGLISH, CHINESE = (
    (markdown.ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")
)
_HEADING = re.compile(r"(?m)^(#+) .*$")
_BLOCK = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
_FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)*")


@dataclass(frozen=True)
class TranslatedSection:
    """What of a section is the same in every language."""

    level: int
    commands: list[tuple[str, list[str]]]
    code: Counter[str]
    links: Counter[str]
    figures: Counter[str]
    rows: int


def sections(text: str) -> list[TranslatedSection]:
    """Return the sections of a page; a command is a line of a block up to its explanation."""
    starts = [match.start() for match in _HEADING.finditer(_BLOCK.sub(_blank, text))]
    return [
        _section(text[start:end])
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True)
    ]


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _section(text: str) -> TranslatedSection:
    heading = _HEADING.match(text)
    assert heading is not None
    prose = _BLOCK.sub("", text)
    plain = markdown._LINK.sub("", re.sub(r"`[^`]+`", "", prose))
    return TranslatedSection(
        len(heading[1]),
        [
            (language, [re.split(r"(?<=\S)\s{2,}", line)[0] for line in block.splitlines()])
            for language, block in _BLOCK.findall(text)
        ],
        Counter(re.findall(r"`[^`]+`", prose)),
        Counter(markdown._LINK.findall(prose)),
        Counter(_FIGURE.findall(plain)),
        prose.count("\n|"),
    )


def test_both_have_the_same_sections() -> None:
    assert [one.level for one in sections(ENGLISH)] == [one.level for one in sections(CHINESE)]


@pytest.mark.parametrize("number", range(len(sections(ENGLISH))))
def test_a_section_has_the_same_commands_links_and_figures(number: int) -> None:
    assert sections(CHINESE)[number] == sections(ENGLISH)[number]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--memory 6GiB", "--memory 7GiB"),
        ("34 ns", "35 ns"),
        ("(SECURITY.md)", "(CONTRIBUTING.md)"),
        ("## 开销", "### 开销"),
        ("`--keep`", "`--kept`"),
    ],
)
def test_a_difference_would_be_noticed(old: str, new: str) -> None:
    assert old in CHINESE
    assert sections(CHINESE.replace(old, new, 1)) != sections(ENGLISH)


def test_the_drivers_of_the_matrix_are_those_that_are_simulated() -> None:
    (row,) = re.findall(r"(?m)^\| Driver \| ([^|]*) \| ([^|]*) \|", ENGLISH)
    profiles = (markdown.ROOT / "simulator/profiles").glob("*.json")
    simulated = {json.loads(path.read_text())["driver_version"] for path in profiles}
    assert set(re.findall(r"\d{3}\.[\d.]+\d", row[0])) == simulated
    reference = (markdown.ROOT / "docs/reference/compatibility.md").read_text()
    known = set(re.findall(r"(?m)^\| [\d.]+ \| (\d{3})(?:\.[\d.]+)? \|", reference))
    assert set(re.findall(r"\b\d{3}\b(?!\.\d)", markdown._LINK.sub("", row[1]))) <= known
