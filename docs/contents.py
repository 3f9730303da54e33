# SPDX-License-Identifier: Apache-2.0
"""docs/index.md: every page by its kind, for readers and for the site's navigation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parent
#: Headings, each with a sentence and the pages' patterns under the repository.
SECTIONS: Final = {
    "Start here": (
        "What gpushare is, whether it fits, and a first session.",
        (
            "README.md",
            "README.zh-CN.md",
            "docs/explanation/is-it-right-for-you.md",
            "docs/tutorial.md",
        ),
    ),
    "How-to guides": ("Steps for one task each.", ("docs/how-to/*.md",)),
    "Explanation": ("How gpushare works, and why.", ("docs/explanation/*.md",)),
    "Reference": (
        "Every command, key, file and message. Most of these pages are made from the code.",
        ("docs/reference/*.md",),
    ),
    "Measurements": ("What gpushare costs, as measured.", ("docs/measurements/*.md",)),
    "Decisions": ("Choices that are hard to undo, with the alternatives.", ("docs/adr/*.md",)),
    "Project": (
        "For contributors.",
        ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "simulator/README.md"),
    ),
}
_TITLE: Final = re.compile(r"(?m)^# (.+)$")


def contents() -> Iterator[str]:
    """Yield the lines of the page: a list for each section, and the navigation of the site."""
    seen: set[Path] = set()
    trees: list[str] = []
    for heading, (sentence, patterns) in SECTIONS.items():
        found = [path for pattern in patterns for path in sorted(DOCS.parent.glob(pattern))]
        found = [path for path in found if path not in seen]
        seen.update(found)
        yield from (f"## {heading}", "", sentence, "")
        yield from (f"- [{_title(path)}]({_link(path)})" for path in found)
        yield ""
        trees += ["```{toctree}", ":hidden:", f":caption: {heading}", ""]
        trees += [*(_link(path) for path in found), "```", ""]
    yield from trees


def _title(path: Path) -> str:
    match = _TITLE.search(path.read_text(encoding="utf-8"))
    assert match is not None, f"{path} has no title"
    return match[1].replace("`", "")


def _link(path: Path) -> str:
    inside = path.is_relative_to(DOCS)
    return str(path.relative_to(DOCS)) if inside else f"../{path.relative_to(DOCS.parent)}"
