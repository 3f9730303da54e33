# SPDX-License-Identifier: Apache-2.0
"""The pages of this repository: their code blocks, links and headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = {
    page: page.read_text(encoding="utf-8")
    for page in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
    if page.parent.name != "measurements"  # reports that ./dev gpu writes
}

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`[^`\n]+`")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*=\S*|sudo|eval")
_PROGRAM = re.compile(r"gpushare|gpushared|\./dev|/opt/gpushare/venv/bin/gpushare")
_SEPARATORS = {"&&", "||", ";", "|", ">", "2>"}


@dataclass(frozen=True)
class CommandLine:
    """A command as a page has it; within a sentence it may be no more than a command's name."""

    place: str
    words: tuple[str, ...]
    in_sentence: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {shlex.join(self.words)}"

    @property
    def program(self) -> str:
        return self.words[0].rpartition("/")[2]


def place(page: Path, text: str, at: int = 0) -> str:
    """Return `docs/a.md:7` of a character of a page's text."""
    return f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, at) + 1}"


def blanked(pattern: re.Pattern[str], text: str) -> str:
    """Return a text of the same lines without what a pattern finds."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def commands() -> Iterator[CommandLine]:
    """Yield every call of a program of ours in a block, or whole within backticks."""
    for page, text in PAGES.items():
        for block in BLOCK.finditer(text):
            if block[1] in {"sh", "console", ""}:
                at = block.start(2)
                for line in re.findall(r"(?:.*\\\n)*.*\n", block[2]):
                    if block[1] == "sh" or line.startswith("$ "):
                        for words in _commands(line.removeprefix("$ ").replace("\\\n", " ")):
                            yield CommandLine(place(page, text, at), words)
                    at += len(line)
        for code in _CODE.finditer(blanked(BLOCK, text)):
            for words in _commands(code[0].strip("`")):
                yield CommandLine(place(page, text, code.start()), words, in_sentence=True)


def _commands(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the commands of a line, without what stands before a program's name."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return  # an apostrophe in prose
    call: list[str] = []
    for word in [*words, ";"]:
        if word in _SEPARATORS:
            if call and _PROGRAM.fullmatch(call[0]):
                yield tuple(call)
            call = []
        elif call or not _WORD.fullmatch(word):
            call.append(word)


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield where a page's links are and lead, but for those to other hosts."""
    text = PAGES[page]
    for found in LINK.finditer(blanked(_CODE, blanked(BLOCK, text))):
        if "://" not in found[1]:
            yield place(page, text, found.start()), found[1]


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = _HEADING.findall(BLOCK.sub("", text))
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
