# SPDX-License-Identifier: Apache-2.0
"""README.zh-CN.md says what README.md says: headings, commands, figures and links, by section."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from tests.unit.docs.markdown import BLOCK, LINK, PAGES, ROOT, blanked

_HEADING = re.compile(r"(?m)^(#+) .*$")
_FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)*")


def sections(name: str) -> list[dict[str, Any]]:
    """Return what of each section is the same in every language."""
    text = PAGES[ROOT / name]
    starts = [match.start() for match in _HEADING.finditer(blanked(BLOCK, text))]
    return [
        _section(text[start:end])
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True)
    ]


def _section(text: str) -> dict[str, Any]:
    """A command is a line of a block up to its explanation."""
    prose = BLOCK.sub("", text)
    return {
        "heading": text.partition(" ")[0],
        "commands": [
            (language, [re.split(r"(?<=\S)\s{2,}", line)[0] for line in block.splitlines()])
            for language, block in BLOCK.findall(text)
        ],
        "code": Counter(re.findall(r"`[^`]+`", prose)),
        "links": Counter(LINK.findall(prose)),
        "figures": Counter(_FIGURE.findall(LINK.sub("", re.sub(r"`[^`]+`", "", prose)))),
        "rows of tables": prose.count("\n|"),
    }


def test_the_translation_has_the_same_headings_commands_links_and_figures() -> None:
    english, chinese = sections("README.md"), sections("README.zh-CN.md")
    faults = [
        f"README.zh-CN.md: section {number}: {what}: {one[what]} is {other[what]} in Chinese"
        for number, (one, other) in enumerate(zip(english, chinese, strict=False), 1)
        for what in one
        if one[what] != other[what]
    ]
    assert not faults, "\n".join(faults)
    assert len(english) == len(chinese)
    assert len(PAGES[ROOT / "README.md"].splitlines()) < 150
