# SPDX-License-Identifier: Apache-2.0
"""Tables of the pages are complete and true: tests by threat and failure, fields, drivers."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import yaml

from docs import diagram
from gpushare import abi
from gpushare.daemon.pages.status_page import StatusPage
from tests.unit.docs.markdown import LINK, PAGES, ROOT

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


def test_the_committed_pictures_are_drawn_from_their_sources_and_their_texts_fit() -> None:
    faults = []
    for source in diagram.PICTURES.glob("*.yaml"):
        if source.with_suffix(".svg").read_text() != diagram.draw(source):
            faults.append(f"{source.name}: its picture differs: run python docs/diagram.py")
        for box in yaml.safe_load(source.read_text())["boxes"]:
            # Seven pixels for each of 13, and eight of a bold name.
            widths = [len(text) * (7, 8)[not line] for line, text in enumerate(box["text"])]
            if max(widths) >= box["at"][2] * diagram.CELL:
                faults.append(f"{source.name}: too wide for its box: {box['text']}")
    assert not faults, "\n".join(faults)


def test_the_drivers_of_the_matrix_are_those_that_are_simulated() -> None:
    (row,) = re.findall(r"(?m)^\| Driver \| ([^|]*) \| ([^|]*) \|", PAGES[ROOT / "README.md"])
    profiles = (ROOT / "simulator/profiles").glob("*.json")
    simulated = {json.loads(path.read_text())["driver_version"] for path in profiles}
    assert set(re.findall(r"\d{3}\.[\d.]+\d", row[0])) == simulated
    reference = PAGES[ROOT / "docs/reference/compatibility.md"]
    known = set(re.findall(r"(?m)^\| [\d.]+ \| (\d{3})(?:\.[\d.]+)? \|", reference))
    assert set(re.findall(r"\b\d{3}\b(?!\.\d)", LINK.sub("", row[1]))) <= known


HEADER: Final = (ROOT / "libhook/include/gpushare_abi.h").read_text()
#: How the table calls a struct, and where in the file that of the first process is.
STRUCTS: Final = {
    "header": ("gpushare_status_header", 0),
    "process": ("gpushare_process", abi.STATUS_PROCESS_OFFSET),
    "usage": ("gpushare_usage", abi.STATUS_USAGE_OFFSET),
    "detail": ("gpushare_detail", abi.STATUS_USAGE_OFFSET + abi.USAGE_DETAIL),
    "work": ("gpushare_work", abi.status_work_offset(0)),
}
SIZES: Final = {"uint32_t": 4, "uint64_t": 8}
COUNTS: Final = {"GPUSHARE_MAX_PROCESSES": abi.MAX_PROCESSES, "GPUSHARE_KINDS": abi.KINDS}


def fields(struct: str) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the offset and the size of each field of whole numbers."""
    found = re.search(rf"struct {struct} {{(.*?)\n}};", HEADER, re.DOTALL)
    assert found is not None, struct
    text = re.sub(r"/\*.*?\*/", "", found[1], flags=re.DOTALL)
    at = 0
    for kind, name, count in re.findall(r"(uint\d+_t)\s+(\w+)(?:\[(\w+)\])?;", text):
        size = SIZES[kind]
        at = -(-at // size) * size
        # Buffers, the first kind, are not recorded: they are what no other kind is.
        yield name, at + (size if count == "GPUSHARE_KINDS" else 0), size
        at += size * (COUNTS.get(count) or int(count or 1))


def answers(page: StatusPage) -> object:
    return page.claims(1), page.waits(0)


def read_by_python(folder: Path) -> Iterator[str]:
    """Yield the fields of which another value makes another answer, with one process."""
    directory = os.open(folder, os.O_RDONLY)
    page = StatusPage.make(directory)
    os.close(directory)
    for struct, offset in STRUCTS.values():
        for name, at, size in fields(struct):
            value = 1 if name == "high_water" else 1000
            if struct != "gpushare_status_header" or name == "high_water":
                os.pwrite(page.fd, value.to_bytes(size, "little"), offset + at)
    before = answers(page)
    for table, (struct, offset) in STRUCTS.items():
        for name, at, size in fields(struct):
            kept = os.pread(page.fd, size, offset + at)
            for value in (0, 7):
                os.pwrite(page.fd, value.to_bytes(size, "little"), offset + at)
                if answers(page) != before:
                    yield f"{table}.{name}"
                    break
            os.pwrite(page.fd, kept, offset + at)


def test_the_audits_page_lists_exactly_the_fields_that_the_host_reads(tmp_path: Path) -> None:
    """Of a tenant's status page. What the scheduler reads is in its source, in one file."""
    texts = {path.name: path.read_text() for path in (ROOT / "scheduler").glob("*.c")}
    by_scheduler = {
        f"{table}.{name}"
        for text in texts.values()
        for table, pattern in (
            ("header", r"offsetof\(struct gpushare_status_header, (\w+)\)"),
            ("work", r"\brecord->(\w+)"),
        )
        for name in re.findall(pattern, text)
    }
    by_python = set(read_by_python(tmp_path))
    _, _, table = PAGES[ROOT / "docs/explanation/audit.md"].partition(
        "## Fields of the status page"
    )
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert sorted(documented) == sorted(by_python | by_scheduler)
    structs = re.compile(r"struct gpushare_(work|usage|process|detail)\b")
    assert [name for name, text in texts.items() if structs.search(text)] == ["status_page.c"]
