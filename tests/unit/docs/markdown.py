# SPDX-License-Identifier: Apache-2.0
"""The pages of this repository: their code blocks, links and headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = tuple(
    page
    for page in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
    if page.parent.name != "measurements"  # reports that ./dev gpu writes
)

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*=\S*|sudo|eval")
_PROGRAM = re.compile(r"gpushare|gpushared|\./dev|/opt/gpushare/venv/bin/gpushare")
_SEPARATORS = {"&&", "||", ";", "|", ">", "2>"}


@dataclass(frozen=True)
class CommandLine:
    """A command as a page has it; within a sentence it may be no more than a command's name."""

    page: str
    words: tuple[str, ...]
    in_sentence: bool = False

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"

    @property
    def program(self) -> str:
        return self.words[0].rpartition("/")[2]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_blocks(text: str) -> str:
    return _BLOCK.sub("", text)


def commands() -> Iterator[CommandLine]:
    """Yield every call of a program of ours in a block, or whole within backticks."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for language, block in _BLOCK.findall(text):
            if language in {"sh", "console", ""}:
                for words in _commands(block, prompted=language != "sh"):
                    yield CommandLine(name(page), words)
        for code in _CODE.findall(without_blocks(text)):
            for words in _commands(code.strip("`"), prompted=False):
                yield CommandLine(name(page), words, in_sentence=True)


def _commands(text: str, *, prompted: bool) -> Iterator[tuple[str, ...]]:
    for line in text.replace("\\\n", " ").splitlines():
        if prompted and not line.startswith("$ "):
            continue
        try:
            words = shlex.split(line.removeprefix("$ "), comments=True)
        except ValueError:
            continue  # an apostrophe in prose
        for call in _calls(words):
            if call and _PROGRAM.fullmatch(call[0]):
                yield tuple(call)


def _calls(words: list[str]) -> Iterator[list[str]]:
    """Yield the commands of one line, without what stands before a program's name."""
    call: list[str] = []
    for word in [*words, ";"]:
        if word in _SEPARATORS:
            yield call
            call = []
        elif call or not _WORD.fullmatch(word):
            call.append(word)


def links(page: Path) -> list[str]:
    """Return where a page's links lead, but for those to other hosts."""
    found = _LINK.findall(_CODE.sub("", without_blocks(page.read_text(encoding="utf-8"))))
    return [link for link in found if "://" not in link]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = _HEADING.findall(without_blocks(page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}
