# SPDX-License-Identifier: Apache-2.0
"""Every code there is has an entry, and what the texts name is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gpushare import knowledge, xid
from gpushare.cli.run import NOT_EXECUTABLE, NOT_FOUND, OURS
from gpushare.compatibility import RULES
from gpushare.errors import ExitStatus
from gpushare.events import EVENTS
from gpushare.quota.dialects import DIALECTS

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
        ("oom", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("固定配额", "fixed-share"),
        ("35", "cudaErrorInsufficientDriver"),
        ("nvml 4", "NVML_ERROR_NO_PERMISSION"),
        ("79", "xid-79"),
        ("NVRM: Xid (PCI:0000:03:00): 79, pid=812, GPU has fallen off the bus.", "xid-79"),
        ("exit status 4", "exit-4"),
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
gpushare: annotation gpushare.io/memory=4G: ambiguous: 4 GiB = 4294967296 bytes => ambiguous-size
ValueError: Bfloat16 is only supported on GPUs with compute capability of at least => vllm-bf16
Failed to initialize NVML: Driver/library version mismatch => NVML_ERROR_LIB_RM_VERSION_MISMATCH
CUDA driver version is insufficient for CUDA runtime version => cudaErrorInsufficientDriver
"""


@pytest.mark.parametrize("row", MESSAGES.replace("\n    ", " ").strip().splitlines())
def test_a_message_is_found_by_its_name_or_its_text(row: str) -> None:
    message, name = row.split(" => ")
    assert first(message) == name


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


def test_the_references_of_every_entry_exist() -> None:
    for entry in ENTRIES:
        pages = [page for page in entry.see if page.startswith("docs/")]
        assert [page for page in pages if not (ROOT / page).is_file()] == [], entry.name
        for name in set(entry.see).difference(pages):
            assert name != entry.name
            assert [found.name for found in knowledge.find_entries(name)[:1]] == [name], entry.name


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
