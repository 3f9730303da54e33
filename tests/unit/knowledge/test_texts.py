# SPDX-License-Identifier: Apache-2.0
"""What the texts of `gpushare explain` name is there: commands, options, keys, pages, words."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gpushare import knowledge, settings
from gpushare.cli import gpushare
from gpushare.cli.text import WIDTH, prose
from gpushare.quota.dialects import DIALECTS
from gpushare.quota.keys import BY_ENV, KEYS
from gpushare.quota.parse import parse_request
from gpushare.settings import resolved

ROOT = Path(__file__).parents[3]
ENTRIES = knowledge.all_entries()
TEXTS = [
    (entry.name, text)
    for entry in ENTRIES
    for text in (entry.what, *(entry.parts[part] for part in entry.parts))
]
# Variables of ours that ask for nothing: docs/reference/environment.md.
OF_LIBRARIES = {"GPUSHARE_LOG"}


def typed(text: str) -> Iterator[str]:
    """Yield what a reader may type: between backticks, or a line that stays as it is."""
    yield from re.findall(r"`([^`]+)`", text)
    for line in text.splitlines():
        if line.startswith("| "):
            yield re.split(r"\s{2,}", line[2:].strip())[0]


def commands() -> Iterator[tuple[str, list[str]]]:
    for name, text in TEXTS:
        for line in typed(text):
            words = shlex.split(line) if line.startswith(("gpushare ", "sudo gpushare ")) else []
            if words:
                yield name, words[words.index("gpushare") + 1 :]


def problem(words: list[str]) -> str:
    """Return what is wrong with a command line of gpushare; "" where it could be typed."""
    command: click.Command = gpushare
    context = click.Context(gpushare, info_name="gpushare")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        below = command.get_command(context, words[0])
        if below is None:
            return f"no command {words[0]}"
        command, words = below, words[1:]
    known = {word for parameter in command.params for word in (*parameter.opts, "--help")}
    for word in words:
        if word == "--":
            break
        if word.startswith("-") and word not in known:
            return f"no option {word}"
    return ""


def test_every_command_and_option_that_a_text_names_exists() -> None:
    found = list(commands())
    assert len(found) > 100
    wrong = [(name, words, problem(words)) for name, words in found if problem(words)]
    assert wrong == []


def test_every_reference_to_gpushare_explain_resolves() -> None:
    """In the code, the documentation and the texts: what they send a reader to is there."""
    files = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    files += [path for path in (ROOT / "gpushare").rglob("*") if path.suffix in {".py", ".ini"}]
    said = {
        (path.name, word)
        for path in files
        for word in re.findall(r"gpushare explain ([\w.-]*[\w])", path.read_text("utf-8"))
    }
    unknown = [
        (file, word)
        for file, word in said
        if not word.isupper() and "." not in word and not knowledge.find_entries(word)
    ]
    assert unknown == []


def keys_of_schema() -> set[str]:
    """Return every key of gpushare.yaml, NAME for one of the user's."""
    whole = settings.load_schema()

    def beneath(node: dict[str, object], above: str) -> Iterator[str]:
        properties = node.get("properties", {})
        assert isinstance(properties, dict)
        for name, part in properties.items():
            entry = dict(resolved(part, whole))
            yield f"{above}{name}"
            yield from beneath(entry, f"{above}{name}.")
            if isinstance(entry.get("additionalProperties"), dict):
                inner = dict(resolved(entry["additionalProperties"], whole))
                yield from beneath(inner, f"{above}{name}.NAME.")

    return set(beneath(whole, ""))


def test_every_key_of_the_configuration_that_a_text_names_is_in_the_schema() -> None:
    known = keys_of_schema()
    sections = {key.partition(".")[0] for key in known if "." in key}
    named = [
        (name, word)
        for name, text in TEXTS
        for word in typed(text)
        if re.fullmatch(r"[a-z_]+(\.[A-Za-z_]+)+", word) and word.partition(".")[0] in sections
    ]
    assert len(named) > 5
    assert [(name, word) for name, word in named if word not in known] == []


def test_a_complete_configuration_in_a_text_is_valid() -> None:
    known = keys_of_schema()
    for name, text in TEXTS:
        for word in re.findall(r"`([a-z_]+)` (?:in|of) gpushare\.yaml", text):
            assert word in known, (name, word)


def test_every_variable_of_ours_that_a_text_names_is_a_key() -> None:
    known = {*BY_ENV, *OF_LIBRARIES}
    wrong = [
        (name, variable)
        for name, text in TEXTS
        for variable in re.findall(r"GPUSHARE_[A-Z_]*[A-Z]", text)
        if variable not in known
    ]
    assert wrong == []


def test_every_value_of_a_variable_that_a_text_has_is_one() -> None:
    for name, text in TEXTS:
        for variable, value in re.findall(r"\b(GPUSHARE_[A-Z_]+)=([^\s`]+)", text):
            if variable in BY_ENV and value != "none":
                assert BY_ENV[variable].parse(value) is not None, (name, variable, value)


def test_every_annotation_of_ours_that_a_text_names_is_a_key() -> None:
    for name, text in TEXTS:
        for annotation in re.findall(r"gpushare\.io/([\w.-]*\w)", text):
            key = annotation.rpartition(".")[2]
            assert key in KEYS, (name, annotation)
    with pytest.raises(ValueError, match="Did you mean"):
        parse_request({"gpushare.io/memroy": "4GiB"}, {}).valid()


def test_the_references_of_every_entry_exist() -> None:
    for entry in ENTRIES:
        pages = [page for page in entry.see if page.startswith("docs/")]
        assert [page for page in pages if not (ROOT / page).is_file()] == [], entry.name
        for name in set(entry.see).difference(pages):
            assert name != entry.name
            assert [found.name for found in knowledge.find_entries(name)[:1]] == [name], entry.name


def test_every_page_that_a_text_names_is_there() -> None:
    pages = {page for _, text in TEXTS for page in re.findall(r"docs/[\w/.-]*\.md", text)}
    assert pages
    assert [page for page in pages if not (ROOT / page).is_file()] == []


@pytest.mark.parametrize("topic", ["dialects", "multi-card"])
def test_texts_and_tables_agree_on_memory_of_all_cards_together(topic: str) -> None:
    totals = {
        one.title.partition(" ")[0]
        for one in DIALECTS.values()
        if any(row.summed and row.key == "memory" for row in one.rows)
    }
    text = knowledge.find_entries(topic)[0].parts["text"]
    (said,) = re.findall(
        r"all cards together \(([^)]*)\)|cards are 8 GiB in all\. (.*) write", text
    )
    assert set(re.findall(r"[A-Z]\w+", "".join(said))) == totals


def words_of_the_code() -> str:
    """Return what the product may say: all its strings, a line each, without what is filled in."""
    found = []
    for path in sorted((ROOT / "gpushare").rglob("*.py")):
        if "knowledge" in path.parts:
            continue
        found += [
            " ".join(node.value.split())
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    for folder in ("runtime", "hooks", "libhook/cuda", "libhook/channel"):
        for path in sorted((ROOT / folder).glob("*.c")):
            text = re.sub(r'"\s*\n\s*"', "", path.read_text("utf-8"))
            found += re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    return "\n".join(found)


def test_every_refusal_has_a_text_that_the_code_uses() -> None:
    said = words_of_the_code()
    refusals = [entry for entry in ENTRIES if entry.group == "Refusals"]
    assert len(refusals) > 20
    assert [entry.name for entry in refusals if not entry.says] == []
    wrong = [(entry.name, words) for entry in refusals for words in entry.says if words not in said]
    assert wrong == []


def test_every_entry_has_a_description_and_a_remedy_in_lines_that_fit() -> None:
    for entry in ENTRIES:
        assert re.fullmatch(r"\w[^\n]{8,150}[.:]", entry.what), entry
        assert not {"text", "do"}.isdisjoint(entry.parts), entry
        assert all(part.strip() for part in entry.parts.values()), entry
        lines = [line for part in entry.parts.values() for line in prose(part, "  ")]
        assert [line for line in lines if len(line) > WIDTH and " " in line.strip()] == [], entry
