# SPDX-License-Identifier: Apache-2.0
"""docs/explanation/audit.md has every field of a status page that a program of the host reads.

What Python reads is found out: a field is read if another value in it makes another answer. What
the scheduler reads is in its source.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gpushare import abi
from gpushare.daemon.pages.status_page import StatusPage

ROOT: Final = Path(__file__).parents[3]
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


def documented() -> list[str]:
    text = (ROOT / "docs/explanation/audit.md").read_text()
    _, _, table = text.partition("## Fields of the status page")
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]


@pytest.fixture
def page(tmp_path: Path) -> StatusPage:
    """A page with one process, each of whose fields says something."""
    directory = os.open(tmp_path, os.O_RDONLY)
    made = StatusPage.make(directory)
    os.close(directory)
    for struct, offset in STRUCTS.values():
        for name, at, size in fields(struct):
            value = 1 if name == "high_water" else 1000
            if struct != "gpushare_status_header" or name == "high_water":
                os.pwrite(made.fd, value.to_bytes(size, "little"), offset + at)
    return made


def answers(page: StatusPage) -> object:
    return page.claims(1), page.waits(0)


def read_by_python(page: StatusPage) -> Iterator[str]:
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
    assert answers(page) == before


def read_by_the_scheduler() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "scheduler").glob("*.c"):
        text = path.read_text()
        found |= {
            f"header.{name}"
            for name in re.findall(r"offsetof\(struct gpushare_status_header, (\w+)\)", text)
        }
        found |= {f"work.{name}" for name in re.findall(r"\brecord->(\w+)", text)}
    return found


def test_the_table_lists_exactly_the_fields_read_from_a_tenants_page(page: StatusPage) -> None:
    by_python, by_scheduler = set(read_by_python(page)), read_by_the_scheduler()
    assert {"usage.held", "process.pid", "work.forced"} <= by_python
    assert {"work.busy_ns", "header.high_water"} <= by_scheduler
    rows = documented()
    assert sorted(rows) == sorted(by_python | by_scheduler)


def test_only_one_file_of_the_scheduler_reads_a_tenants_page() -> None:
    """So that the test above sees what is read."""
    readers = {
        path.name
        for path in (ROOT / "scheduler").glob("*.c")
        if re.search(r"struct gpushare_(work|usage|process|detail)\b", path.read_text())
    }
    assert readers == {"status_page.c"}
