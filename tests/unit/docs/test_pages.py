# SPDX-License-Identifier: Apache-2.0
"""What the pages say can be typed, what they point at is there, and they are reachable."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gpushare.cli import gpushare
from gpushare.daemon import __main__ as gpushared
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from tests import demo
from tests.unit.docs import markdown
from tests.unit.docs.markdown import PAGES, ROOT
from tools.bench import __main__ as bench
from tools.check.steps import STEPS
from tools.gpu import __main__ as gpu


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


#: As an engine shows it: the refusal is the launcher's, and what follows the engine's.
REFUSED = re.compile(r"gpushare: (env (GPUSHARE_\w+)=(\S+): .*?)(?:: unknown)?$", re.MULTILINE)


def test_each_refusal_is_shown_as_it_is_printed() -> None:
    faults, shown = [], 0
    for page, text in PAGES.items():
        for found in REFUSED.finditer(text):
            shown += 1
            try:
                parse_request({}, {found[2]: found[3]}).valid()
                printed = "nothing"
            except QuotaError as error:
                printed = str(error)
            if printed != found[1]:
                faults.append(f"{markdown.place(page, text, found.start())}: prints {printed}")
    assert not faults, "\n".join(faults)
    assert shown >= 3
