# SPDX-License-Identifier: Apache-2.0
"""scheduler_sync.py has the layout of scheduler/message.h, by the C compiler."""

from __future__ import annotations

import json
import struct
import subprocess
from typing import Final

import pytest

from gpushare import abi
from gpushare.daemon import scheduler_sync as schedule_message
from tests.compiled import ROOT

from .conftest import SOURCES

STRUCTS: Final = {
    "schedule_message": (
        schedule_message.MESSAGE,
        ("type", "version", "key", "card_count", "reserved"),
    ),
    "schedule_share": (
        schedule_message.SHARE,
        ("uuid", "permille", "capped", "online", "priority", "measured", "correction_permille"),
    ),
    "schedule_answer": (
        schedule_message.ANSWER,
        ("version", "error", "pid", "tenants", "time_scale"),
    ),
}
NUMBERS: Final = ("VERSION", "HELLO", "TENANT", "REMOVE", "COMPLETE")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    lines = [f'N("{name}", SCHEDULE_{name})' for name in NUMBERS]
    for name, (_, fields) in STRUCTS.items():
        lines += [f'N("{name}.{field}", offsetof(struct {name}, {field}))' for field in fields]
    lines += [f'N("{name}", sizeof(struct {name}))' for name in STRUCTS]
    lines.append('N("shares", offsetof(struct schedule_message, shares))')
    source = tmp_path_factory.mktemp("message") / "message.c"
    body = ";\n".join(lines)
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        '#include "message.h"\n'
        '#define N(name, value) printf("\\"%s\\": %llu,\\n", name, (unsigned long long)(value))\n'
        f'int main(void)\n{{\nputs("{{");\n{body};\nputs("\\"end\\": 0}}");\nreturn 0;\n}}\n'
    )
    program = source.with_suffix("")
    subprocess.run(
        [
            "cc",
            "-std=c11",
            "-Wall",
            "-Werror",
            f"-I{SOURCES}",
            f"-I{ROOT}/libhook/include",
            str(source),
            "-o",
            str(program),
        ],
        check=True,
    )
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    figures: dict[str, int] = json.loads(printed)
    return figures


@pytest.mark.parametrize("name", NUMBERS)
def test_a_figure_is_the_one_of_the_header(compiled: dict[str, int], name: str) -> None:
    assert getattr(schedule_message, name) == compiled[name]


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_is_packed_as_the_header_lays_it_out(compiled: dict[str, int], name: str) -> None:
    layout, fields = STRUCTS[name]
    parts = layout.format.lstrip("<")
    sizes = [struct.calcsize(f"<{part}") for part in split(parts)]
    assert [compiled[f"{name}.{field}"] for field in fields] == [
        sum(sizes[:number]) for number in range(len(fields))
    ]
    shares = compiled["schedule_share"] * abi.MAX_CARDS if name == "schedule_message" else 0
    assert layout.size + shares == compiled[name]


def split(layout: str) -> list[str]:
    """Return each field of a struct's format: `II24s` is I, I and 24s."""
    found, count = [], ""
    for letter in layout:
        if letter.isdigit():
            count += letter
        else:
            found.append(count + letter)
            count = ""
    return found


def test_nothing_is_no_answer() -> None:
    with pytest.raises(ValueError, match="an answer of 0 bytes, not 20"):
        schedule_message.read_reply(b"")
