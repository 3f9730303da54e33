# SPDX-License-Identifier: Apache-2.0
"""scheduler_sync.py has the layout of scheduler/message.h, by the C compiler."""

from __future__ import annotations

import re
import struct
from typing import Final

import pytest

from gpushare import abi
from gpushare.daemon import scheduler_sync as schedule_message
from tests.compiled import figures

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
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int | str]:
    asked = {name: f"SCHEDULE_{name}" for name in NUMBERS}
    for name, (_, fields) in STRUCTS.items():
        asked |= {f"{name}.{field}": f"offsetof(struct {name}, {field})" for field in fields}
        asked[name] = f"sizeof(struct {name})"
    return figures(tmp_path_factory.mktemp("message"), SOURCES / "message.h", asked)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_figure_is_the_one_of_the_header(compiled: dict[str, int | str], name: str) -> None:
    assert getattr(schedule_message, name) == compiled[name]


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_is_packed_as_the_header_lays_it_out(
    compiled: dict[str, int | str], name: str
) -> None:
    layout, fields = STRUCTS[name]
    parts = re.findall(r"\d*[a-zA-Z]", layout.format)
    sizes = [struct.calcsize(f"<{part}") for part in parts]
    assert [compiled[f"{name}.{field}"] for field in fields] == [
        sum(sizes[:number]) for number in range(len(fields))
    ]
    shares = schedule_message.SHARE.size * abi.MAX_CARDS if name == "schedule_message" else 0
    assert layout.size + shares == compiled[name]


def test_nothing_is_no_answer() -> None:
    with pytest.raises(ValueError, match="an answer of 0 bytes, not 20"):
        schedule_message.read_reply(b"")
