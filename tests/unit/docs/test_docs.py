# SPDX-License-Identifier: Apache-2.0
"""What the pages say can be typed, what they point at is there, and they are reachable."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpushare.cli import gpushare
from tests import demo
from tools.bench import __main__ as bench
from tools.check.steps import STEPS
from tools.gpu import __main__ as gpu

from . import markdown

COMMANDS = sorted(set(markdown.commands()), key=str)
PLACEHOLDERS = {"NAME", "..."}  # ./dev bench NAME
USAGE = 2


def called(program: str) -> list[markdown.CommandLine]:
    return [line for line in COMMANDS if line.program == program]


def tree(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and all beneath it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from tree(below)


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """The command line with nothing behind it: it parses, and does nothing."""
    for command in tree(gpushare):
        monkeypatch.setattr(command, "callback", lambda *_args, **_kwargs: None)
    return CliRunner()


@pytest.mark.parametrize("line", called("gpushare"), ids=str)
def test_a_line_with_gpushare_is_one_that_it_understands(
    line: markdown.CommandLine, parser: CliRunner
) -> None:
    if line.in_sentence and _is_name(line.words[1:]):
        return
    result = parser.invoke(gpushare, _existing(line.words[1:]))
    assert result.exit_code == 0, result.output


def _is_name(words: tuple[str, ...]) -> bool:
    """Whether the words name a command and say nothing more."""
    found: click.Command | None = gpushare
    for word in words:
        if not isinstance(found, click.Group):
            return False
        found = found.get_command(click.Context(found), word)
    return found is not None


def _existing(words: tuple[str, ...]) -> list[str]:
    """Return the words with a folder that is there for --root's, and a file for a device's."""
    found = [__file__ if word == "./cards/device" else word for word in words]
    if "--root" in found:
        found[found.index("--root") + 1] = "/"
    return found


def test_a_line_that_is_wrong_would_be_noticed(parser: CliRunner) -> None:
    assert parser.invoke(gpushare, ["ls", "--al"]).exit_code == USAGE
    assert parser.invoke(gpushare, ["run", "--memroy", "4GiB", "--", "true"]).exit_code == 125
    assert parser.invoke(gpushare, ["set", "--memory", "6GiB"]).exit_code == USAGE


@pytest.mark.parametrize("line", called("dev"), ids=str)
def test_a_line_with_dev_is_one_that_it_understands(line: markdown.CommandLine) -> None:
    command, *arguments = line.words[1:] or ["--help"]
    arguments = [word for word in arguments if word not in PLACEHOLDERS]
    assert re.search(rf"^\t*(-h \| )?{re.escape(command)}( \| help)?\)$", DEV, re.MULTILINE)
    if command == "demo":
        demo._options(arguments)
    elif command == "check":
        assert set(arguments) <= {step.name for step in STEPS}
    elif command == "bench":
        bench._options(arguments)
    elif command == "gpu":
        gpu._options(arguments)
    elif command == "setup":
        assert arguments in ([], ["--plan"])


DEV = (markdown.ROOT / "dev").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", called("gpushared"), ids=str)
def test_a_line_with_gpushared_names_options_that_it_has(line: markdown.CommandLine) -> None:
    assert {word for word in line.words[1:] if word.startswith("-")} <= options_of_gpushared()


@cache
def options_of_gpushared() -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-m", "gpushare.daemon", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return set(re.findall(r"--[a-z-]+", shown))


def test_every_program_is_called_somewhere() -> None:
    for program in ("gpushare", "dev", "gpushared"):
        assert called(program)
    names = {word for line in called("gpushare") for word in line.words}
    assert {"ls", "ps", "inspect", "run", "set", "doctor", "verify", "setup"} <= names


@pytest.mark.parametrize("page", markdown.PAGES, ids=markdown.name)
def test_a_relative_link_leads_somewhere(page: Path) -> None:
    lost = []
    for link in markdown.links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in markdown.anchors(target)):
            lost.append(link)
    assert not lost


def test_every_path_of_contributing_exists() -> None:
    text = (markdown.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = "configs|docs|gpushare|hooks|libhook|packaging|runtime|scheduler|simulator|tests"
    named = set(re.findall(rf"`((?:{folders})/[\w./-]*)`", text))
    assert len(named) > 100
    assert not {path for path in named if not (markdown.ROOT / path).exists()}


def test_every_module_that_contributing_names_is_in_a_folder_of_its_row() -> None:
    """`choose.py`, beside a path: "the order of the sets: `strategy.py`"."""
    rows = (markdown.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    lost = [
        module
        for row in rows
        for module in re.findall(r"`(\w+\.(?:py|c))`", row)
        if not any(
            (markdown.ROOT / folder / module).exists()
            for folder in re.findall(r"`([\w./-]+/)[\w.-]*`", row)
        )
    ]
    assert not lost


def test_every_page_of_docs_can_be_reached_from_the_readme() -> None:
    found: set[Path] = set()
    waiting = [markdown.ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in found:
            continue
        found.add(page)
        if page.is_dir():
            waiting += page.glob("*.md")
        elif page.suffix == ".md":
            waiting += [page.parent / link.partition("#")[0] for link in markdown.links(page)]
    lost = {markdown.name(page) for page in markdown.PAGES} - {
        markdown.name(page) for page in found if page.suffix == ".md"
    }
    assert not lost


def test_the_readme_is_short() -> None:
    assert len((markdown.ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150
