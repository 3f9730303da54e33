# SPDX-License-Identifier: Apache-2.0
"""Every code there is has an entry, and what the texts name is there."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gpushare import knowledge, settings, xid
from gpushare.cli import gpushare
from gpushare.cli.run import NOT_EXECUTABLE, NOT_FOUND, OURS
from gpushare.cli.text import WIDTH, prose
from gpushare.compatibility import RULES
from gpushare.errors import ExitStatus
from gpushare.events import EVENTS
from gpushare.quota.dialects import DIALECTS
from gpushare.quota.keys import BY_ENV, KEYS
from gpushare.quota.parse import parse_request
from gpushare.settings import resolved

ROOT = Path(__file__).parents[3]


TABLE = ROOT / "libhook" / "table"


ENTRIES = knowledge.all_entries()


def of_headers(file: str) -> dict[str, int]:
    """Return name -> number of a generated file of the headers' errors."""
    rows = re.findall(r"^\w+\((\w+), (\d+)[,)]", (TABLE / file).read_text(), re.MULTILINE)
    return {name: int(number) for name, number in rows}


def of_group(group: str) -> dict[str, int | None]:
    return {entry.name: entry.number for entry in ENTRIES if entry.group == group}


def first(words: str) -> str:
    """Return what `words` is taken for; "" where it is nothing's."""
    return next((entry.name for entry in knowledge.find_entries(words)), "")


def test_every_error_of_the_driver_has_an_entry_with_its_number() -> None:
    assert of_group("CUDA") == of_headers("cuda_result.inc")


def test_every_error_of_nvml_has_an_entry_with_its_number() -> None:
    assert of_group("NVML") == of_headers("nvml_result.inc")


def test_every_error_of_the_runtime_is_found_by_its_name_and_number() -> None:
    missing = [
        (name, number)
        for name, number in of_headers("runtime_error.inc").items()
        if [entry.number for entry in knowledge.find_entries(name)[:1]] != [number]
    ]
    assert missing == []


def test_every_exit_status_of_the_programs_has_an_entry() -> None:
    said = {*ExitStatus, OURS, NOT_EXECUTABLE, NOT_FOUND}
    assert said <= set(of_group("Exit statuses").values())


def test_every_event_of_the_log_has_an_entry() -> None:
    assert [name for name in EVENTS if first(name) != name] == []


def test_every_xid_that_gpushared_knows_has_an_entry_that_agrees_with_it() -> None:
    for number in (*xid.FATAL, *xid.OF_A_PROGRAM):
        found = knowledge.find_entries(f"xid-{number}")
        assert [entry.name for entry in found] == [f"xid-{number}"]
        assert xid.meaning(number) in found[0].what


def test_an_unknown_xid_is_referred_to_nvidias_catalog() -> None:
    (found,) = knowledge.find_entries("XID 154")
    assert (found.name, found.number) == ("xid-154", 154)
    assert "catalog" in found.parts["do"]


def test_no_two_entries_share_a_name_but_products_of_one_maker() -> None:
    found = [one for one in ENTRIES if one.group not in {"Vendors", "Rules of compat"}]
    names = [name.casefold() for entry in found for name in (entry.name, *entry.also)]
    names += {name for entry in ENTRIES if entry.group == "Vendors" for name in entry.also}
    names += DIALECTS
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("cuda_error_out_of_memory", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("CUDA error: out of memory", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("2", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("error(2)", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("oom", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("固定配额", "fixed-share"),
        ("35", "cudaErrorInsufficientDriver"),
        ("nvml 4", "NVML_ERROR_NO_PERMISSION"),
        ("xid 79", "xid-79"),
        ("79", "xid-79"),
        ("NVRM: Xid (PCI:0000:03:00): 79, pid=812, GPU has fallen off the bus.", "xid-79"),
        ("exit status 4", "exit-4"),
        ("Fixed-Share", "fixed-share"),
        ("bf16", "precision"),
    ],
)
def test_a_name_or_a_number_is_found_in_any_spelling(words: str, name: str) -> None:
    assert first(words) == name


MESSAGES = """
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB => CUDA_ERROR_OUT_OF_MEMORY
RuntimeError: CUDA error: an illegal memory access was encountered => CUDA_ERROR_ILLEGAL_ADDRESS
cuModuleLoadData failed: CUDA_ERROR_INVALID_PTX (218) => CUDA_ERROR_INVALID_PTX
gpushare: no card has room for 200 GiB: card 0 has 126 of 140 GiB available => no-room
gpushare: env GPUSHARE_MEMORY=4G: ambiguous: 4 GiB = 4294967296 bytes, or => ambiguous-size
ValueError: Bfloat16 is only supported on GPUs with compute capability of at least => vllm-bf16
Failed to initialize NVML: Driver/library version mismatch => NVML_ERROR_LIB_RM_VERSION_MISMATCH
CUDA driver version is insufficient for CUDA runtime version => cudaErrorInsufficientDriver
"""


@pytest.mark.parametrize("row", MESSAGES.replace("\n    ", " ").strip().splitlines())
def test_a_message_is_found_by_its_name_or_its_text(row: str) -> None:
    message, name = row.split(" => ")
    assert first(message) == name


@pytest.mark.parametrize("words", ["", "...", "zzz", "12345", "a message that nobody wrote"])
def test_an_unknown_word_finds_nothing(words: str) -> None:
    assert knowledge.find_entries(words) == []


def test_a_misspelt_name_has_those_that_are_close() -> None:
    assert "isolation" in knowledge.similar_names("isolaton")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in knowledge.similar_names("CUDA_ERROR_ILEGAL_ADRESS")
    assert knowledge.similar_names("qqqqqqqqqq") == []


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_has_a_topic_with_each_of_its_keys(name: str) -> None:
    (found,) = knowledge.find_entries(name)
    missing = [
        row.name for row in DIALECTS[name].rows if f"`{row.name}`" not in found.parts["text"]
    ]
    assert (found.name, missing) == (name, [])


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_compat_has_an_entry_that_says_it(rule: str) -> None:
    assert RULES[rule] in [entry.what for entry in knowledge.find_entries(rule)]


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


def test_every_variable_of_ours_that_a_text_names_is_a_key() -> None:
    known = {*BY_ENV, *OF_LIBRARIES}
    wrong = [
        (name, variable)
        for name, text in TEXTS
        for variable in re.findall(r"GPUSHARE_[A-Z_]*[A-Z]", text)
        if variable not in known
    ]
    assert wrong == []


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
