# SPDX-License-Identifier: Apache-2.0
"""What pages and tables say is there and complete, and README.zh-CN.md says what README.md does."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import click
import pytest
from click.testing import CliRunner

from gpushare.cli import gpushare
from gpushare.daemon import __main__ as gpushared
from tests import demo
from tests.unit.docs import markdown
from tests.unit.docs.markdown import BLOCK, LINK, PAGES, ROOT, blanked
from tools.bench import __main__ as bench
from tools.check.steps import STEPS
from tools.gpu import __main__ as gpu
from tools.gpu import pack


def tree(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and all beneath it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from tree(below)


def by_gpushare(words: list[str]) -> str:
    """Return what the command line answers, whose commands do nothing; nothing: it parses."""
    # A folder that is there for --root's, and a file for a device's.
    words = [__file__ if word == "./cards/device" else word for word in words]
    if "--root" in words:
        words[words.index("--root") + 1] = "/"
    result = CliRunner().invoke(gpushare, words)
    return result.output if result.exit_code else ""


def is_name(words: list[str]) -> bool:
    """Whether the words name a command of gpushare and say nothing more."""
    found: click.Command | None = gpushare
    for word in words:
        if not isinstance(found, click.Group):
            return False
        found = found.get_command(click.Context(found), word)
    return found is not None


def parsed(parse: Callable[[list[str]], Any], words: list[str]) -> str:
    """Return why an ArgumentParser refuses words; nothing: it does not."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parse(words)
    except (SystemExit, argparse.ArgumentError) as error:
        return said.getvalue() or repr(error)
    return ""


DEV = (ROOT / "dev").read_text(encoding="utf-8")


def by_dev(words: list[str]) -> str:
    command, *arguments = words or ["--help"]
    arguments = [word for word in arguments if word not in {"NAME", "..."}]  # ./dev bench NAME
    if not re.search(rf"^\t*(-h \| )?{re.escape(command)}( \| help)?\)$", DEV, re.MULTILINE):
        return "no such command"
    if words[:2] == ["gpu", "pack"]:
        return parsed(pack._options, arguments[1:])
    if command in {"demo", "bench", "gpu"}:
        options = {"demo": demo._options, "bench": bench._options, "gpu": gpu._options}
        return parsed(options[command], arguments)
    if command == "check":
        return " ".join(set(arguments) - {"--all", *(step.name for step in STEPS)})
    return " ".join(set(arguments) - {"--all", "--plan"}) if command == "setup" else ""


def by_gpushared(words: list[str]) -> str:
    known = re.findall(r"--[a-z-]+", gpushared._parser().format_help())
    return " ".join({word for word in words if word.startswith("-")} - set(known))


def test_each_command_is_one_that_its_program_understands(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in tree(gpushare):
        monkeypatch.setattr(command, "callback", lambda *_args, **_kwargs: None)
    faults, called = [], set()
    programs = {"gpushare": by_gpushare, "dev": by_dev, "gpushared": by_gpushared}
    for line in markdown.commands():
        words = list(line.words[1:])
        called |= {line.program} | {word for word in words if line.program == "gpushare"}
        if line.program == "gpushare" and line.in_sentence and is_name(words):
            continue
        if answer := programs[line.program](words):
            faults.append(f"{line}: {answer}")
    assert not faults, "\n".join(faults)
    assert called >= {
        *programs, "ls", "ps", "inspect", "run", "set", "doctor", "verify", "setup"
    }  # fmt: skip


def test_each_link_leads_somewhere_and_each_page_is_reached_from_the_readme() -> None:
    faults = []
    reached, waiting = set(), [ROOT / "README.md"]
    leads = {}
    for page in PAGES:
        leads[page] = [page]
        for at, link in markdown.links(page):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            leads[page] += [target] if target.suffix == ".md" else target.glob("*.md")
            if not target.exists() or (
                anchor and anchor not in markdown.anchors(target.read_text(encoding="utf-8"))
            ):
                faults.append(f"{at}: {link}: no such page or heading")
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += leads.get(page, [])
    faults += [
        f"{markdown.place(page, '')}: no page that the README leads to has a link to it"
        for page in PAGES.keys() - reached
    ]
    assert not faults, "\n".join(faults)


def test_contributing_names_files_that_exist() -> None:
    """A module without its folder, beside a path, is there: "the order of sets: `strategy.py`"."""
    page = ROOT / "CONTRIBUTING.md"
    folders = (
        "configs|docs|gpushare|hooks|libhook|packaging|runtime|scheduler|simulator|tests|tools"
    )
    faults, named = [], 0
    for number, row in enumerate(PAGES[page].splitlines(), 1):
        paths = re.findall(rf"`((?:{folders})/[\w./-]*)`", row)
        named += len(paths)
        beside = re.findall(r"`([\w./-]+/)[\w.-]*`", row)
        faults += [f"{page}:{number}: no {path}" for path in paths if not (ROOT / path).exists()]
        faults += [
            f"{page}:{number}: no {module} in {', '.join(beside)}"
            for module in re.findall(r"`(\w+\.(?:py|c))`", row)
            if not any((ROOT / folder / module).exists() for folder in beside)
        ]
    assert not faults, "\n".join(faults)
    assert named > 100


#: The tables that name tests, and the folder of which all tests are named, but for those that
#: support others.
CAUSED: Final = {
    "threat-model.md": (
        "",
        "hostile",
        {
            "test_an_honest_image_starts",
            "test_the_witness_sees_every_access",
            "test_a_refused_container_can_be_made_once_there_is_room",
        },
    ),
    "failure-modes.md": ("## Failures and effects", "faults", set()),
}


@cache
def functions(file: str) -> frozenset[str]:
    if not (ROOT / file).exists():
        return frozenset()
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("name", CAUSED)
def test_each_threat_and_failure_names_the_tests_that_cause_it(name: str) -> None:
    heading, folder, excused = CAUSED[name]
    text = PAGES[ROOT / "docs/explanation" / name]
    rows = [
        (number, line.split(" | "))
        for number, line in enumerate(text.splitlines(), 1)
        if line.startswith("| ") and number > text[: text.index(heading)].count("\n")
    ][1:]
    faults, shown = [], set()
    for number, row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[-1])
        shown |= set(named)
        if len(row) != 3 or not named or row[2].count("::") != len(named):
            faults.append(f"{name}:{number}: three cells, the last with tests as `file::function`")
        faults += [
            f"{name}:{number}: {file} has no {function}"
            for file, function in named
            if function not in functions(file)
        ]
    for path in sorted((ROOT / "tests/system" / folder).glob("test_*.py")):
        file = str(path.relative_to(ROOT))
        faults += [
            f"{file}: {function} is in no row of {name}"
            for function in sorted(functions(file) - excused)
            if function.startswith("test_") and (file, function) not in shown
        ]
    assert not faults, "\n".join(faults)
    assert len(rows) >= 20


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
