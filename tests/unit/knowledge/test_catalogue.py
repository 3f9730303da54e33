# SPDX-License-Identifier: Apache-2.0
"""Every code there is has an entry, and every spelling of it finds that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpushare import knowledge, xid
from gpushare.cli.run import NOT_EXECUTABLE, NOT_FOUND, OURS
from gpushare.compatibility import RULES
from gpushare.errors import ExitStatus
from gpushare.events import EVENTS
from gpushare.knowledge import read_entries
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
        ("out of memory", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("CUDA error: out of memory", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("CUDAERRORMEMORYALLOCATION", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("2", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("CUDA error 2", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("error(2)", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("oom", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("固定配额", "fixed-share"),
        ("35", "cudaErrorInsufficientDriver"),
        ("nvml 4", "NVML_ERROR_NO_PERMISSION"),
        ("gpu is lost", "NVML_ERROR_GPU_IS_LOST"),
        ("xid 79", "xid-79"),
        ("79", "xid-79"),
        ("NVRM: Xid (PCI:0000:03:00): 79, pid=812, GPU has fallen off the bus.", "xid-79"),
        ("exit status 4", "exit-4"),
        ("Fixed-Share", "fixed-share"),
        ("fs", "fixed-share"),
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


def test_a_number_of_several_tables_is_the_drivers_and_names_the_others() -> None:
    assert [entry.name for entry in knowledge.find_entries("4")] == [
        "CUDA_ERROR_DEINITIALIZED",
        "NVML_ERROR_NO_PERMISSION",
        "exit-4",
    ]


@pytest.mark.parametrize("words", ["", "...", "zzz", "12345", "a message that nobody wrote"])
def test_an_unknown_word_finds_nothing(words: str) -> None:
    assert knowledge.find_entries(words) == []


def test_a_misspelt_name_has_those_that_are_close() -> None:
    assert "isolation" in knowledge.similar_names("isolaton")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in knowledge.similar_names("CUDA_ERROR_ILEGAL_ADRESS")
    assert knowledge.similar_names("qqqqqqqqqq") == []


@pytest.mark.parametrize("name", ["memroy", "GPUSHARE_MEMROY", "gpushare.io/memroy"])
def test_of_a_topic_and_a_code_of_one_name_the_topic_is_meant(name: str) -> None:
    assert knowledge.similar_names(name) == ["memory"]


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_has_a_topic_with_each_of_its_keys(name: str) -> None:
    (found,) = knowledge.find_entries(name)
    missing = [
        row.name for row in DIALECTS[name].rows if f"`{row.name}`" not in found.parts["text"]
    ]
    assert (found.name, missing) == (name, [])


def test_other_names_of_a_product_lead_to_its_dialect() -> None:
    assert sorted(knowledge.ALSO.keys() - DIALECTS) == []


def test_a_topic_comes_before_a_rule_of_the_same_name() -> None:
    assert [entry.group for entry in knowledge.find_entries("precision")] == [
        "Versions",
        "Rules of compat",
    ]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_compat_has_an_entry_that_says_it(rule: str) -> None:
    assert RULES[rule] in [entry.what for entry in knowledge.find_entries(rule)]


def test_a_vendors_entry_has_unit_position_and_translation() -> None:
    (found,) = knowledge.find_entries("vcuda")
    assert "`tencent.com/vcuda-memory` (resources.limits; units of 256 MiB" in found.parts["text"]
    assert "Here: memory" in found.parts["text"]


def test_the_text_of_a_class_holds_for_an_entry_without_its_own(tmp_path: Path) -> None:
    file = tmp_path / "some.ini"
    file.write_text(
        "[class:c]\nwhat = Of a class.\ndo =\n    - Wait.\n\n"
        "[A]\nclass = c\nwhat = An A.\n\n"
        "[B]\nclass = c\nnumber = 7\nalso = b\n    bb\nwhat = A B.\n"
        "do =\n    One.\n\n    | two  words\n"
    )
    a, b = read_entries(file, "G")
    assert (a.kind, a.parts) == ("Of a class.", {"do": "- Wait."})
    assert (b.number, b.also, b.parts) == (7, ("b", "bb"), {"do": "One.\n\n| two  words"})
