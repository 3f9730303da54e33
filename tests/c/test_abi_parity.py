# SPDX-License-Identifier: Apache-2.0
"""gpushare/abi.py says of gpushare_abi.h what the C compiler says of it."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Final

import pytest

from gpushare import abi
from gpushare.oci.container import IN_CONTAINER, ON_HOST
from tests.compiled import figures

INCLUDE: Final = Path(__file__).parents[2] / "libhook" / "include"

TEXTS: Final = (
    "CONTAINER_DIR HOST_DIR DRIVER_DIR TENANT_DIR GRANT_NAME STATUS_NAME SOCKET_NAME WAKEUP_NAME "
    "MPS_NAME PIPES_NAME TENANT_DIR_ENV"
)
NUMBERS: Final = (
    "ABI_VERSION ABI_MAGIC PAGE_BYTES MAX_CARDS MAX_PROCESSES "
    "GATE_OPEN GATE_METERED GATE_WINDOW GATE_CLOSED GATE_STALE_NS "
    "GRANT_BYTES STATUS_PROCESS_OFFSET STATUS_WORK_OFFSET STATUS_WORK_BYTES "
    "STATUS_USAGE_OFFSET STATUS_CARD_BYTES STATUS_BYTES "
    "KIND_BUFFER KIND_CONTEXT KIND_MANAGED KIND_POOL KIND_PHYSICAL "
    "KIND_ARRAY KIND_GRAPH KIND_MODULE KIND_CONTEXT_LIMIT KIND_EXTERNAL KINDS "
    "PENDING_BITS PENDING_BYTES "
    "MESSAGE_LOG MESSAGE_SHORTFALL MESSAGE_RESTORE MESSAGE_TEXT_BYTES"
)
#: struct -> fields whose place abi.py has, under the struct's name, and "bytes" for its size
STRUCTS: Final = {
    "grant_header": (
        "magic abi_version card_count generation unbound heartbeat_ns key evicted mps first_uuid"
    ),
    "grant_card": (
        "uuid quota_bytes limit_bytes context_bytes overhead_bytes cores_percent "
        "utilization_percent managed_limit_bytes gate"
    ),
    "gate": (
        "mode epoch in_flight_max_ns timing_interval_ns wait_max_ns heartbeat_ns busy_ns "
        "self_throttle_permille pieces_min charged_ns windows demand_ns hung claimed_ns ungated_ns"
    ),
    "work": "bytes submitted",
    "process": "bytes shares",
    "detail": "bytes",
    "usage": "bytes held pending exported imported detail",
    "status_header": "bytes high_water",
    "message": "bytes text",
    "shortfall": "bytes",
}
#: struct -> the fields of its packed form, in their order
PACKED: Final = {
    "gate": (
        "mode epoch in_flight_max_ns timing_interval_ns wait_max_ns heartbeat_ns busy_ns "
        "self_throttle_permille pieces_min reserved charged_ns windows overruns demand_ns hung "
        "reserved2 claimed_ns ungated_ns"
    ),
    "work": ("done waiting busy_ns since_ns pending_ns submitted ended throttled_ns forced begun"),
    "process": "pid shares starttime denied denied_bytes",
    "detail": "bytes pool_kept_bytes contexts",
    "status_header": "magic abi_version high_water sharing reserved",
    "shortfall": "type card pid rest_bytes wanted_bytes",
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int | str]:
    asked = {name: f"GPUSHARE_{name}" for name in (*TEXTS.split(), *NUMBERS.split())}
    for name, fields in STRUCTS.items():
        for field in fields.split():
            c = f"struct gpushare_{name}"
            place = f"sizeof({c})" if field == "bytes" else f"offsetof({c}, {field})"
            asked[f"{name}_{field}".upper()] = place
    for name, fields in PACKED.items():
        for field in fields.split():
            asked[f"{name}.{field}"] = f"offsetof(struct gpushare_{name}, {field})"
    asked |= {f"card {number}": f"GPUSHARE_GRANT_CARD_OFFSET({number})" for number in (0, 1, 15)}
    asked["key bytes"] = "sizeof((struct gpushare_grant_header *)0)->key"
    asked["uuid bytes"] = "sizeof((struct gpushare_grant_card *)0)->uuid"
    return figures(tmp_path_factory.mktemp("abi"), INCLUDE / "gpushare_abi.h", asked)


def python_names() -> list[str]:
    names = [*TEXTS.split(), *NUMBERS.split()]
    for name, fields in STRUCTS.items():
        names += [f"{name}_{field}".upper() for field in fields.split()]
    return names


@pytest.mark.parametrize("name", python_names())
def test_a_figure_is_the_one_of_the_header(compiled: dict[str, int | str], name: str) -> None:
    assert getattr(abi, name) == compiled[name]


@pytest.mark.parametrize("number", [0, 1, 15])
def test_a_card_begins_where_the_header_says(compiled: dict[str, int | str], number: int) -> None:
    assert abi.grant_card_offset(number) == compiled[f"card {number}"]


def test_text_fields_have_the_length_of_the_header(compiled: dict[str, int | str]) -> None:
    assert compiled["key bytes"] == abi.GRANT_HEADER_KEY_BYTES
    assert compiled["uuid bytes"] == abi.GRANT_CARD_UUID_BYTES


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_form_has_each_field_in_its_place(
    compiled: dict[str, int | str], name: str
) -> None:
    order, *codes = re.findall(r"[<@]|\d*[IQ]", getattr(abi, name.upper()).format)
    before = ["".join(codes[:number]) for number in range(len(codes))]
    assert [
        struct.calcsize(f"{order}{form}0{code[-1]}")  # aligned for the field
        for form, code in zip(before, codes, strict=True)
    ] == [compiled[f"{name}.{field}"] for field in PACKED[name].split()]


def test_containers_have_our_files_where_the_libraries_are_built_for() -> None:
    assert (IN_CONTAINER.top, ON_HOST.top) == (abi.CONTAINER_DIR, abi.HOST_DIR)
    assert (IN_CONTAINER.driver, IN_CONTAINER.tenant) == (abi.DRIVER_DIR, abi.TENANT_DIR)


def test_the_packed_forms_have_the_size_of_their_structs() -> None:
    assert abi.PROCESS.size == abi.PROCESS_BYTES
    assert abi.DETAIL.size == abi.DETAIL_BYTES
    assert abi.WORK.size == abi.WORK_BYTES
    assert abi.STATUS_HEADER.size == abi.STATUS_HEADER_BYTES
    assert abi.MESSAGE_HEADER.size == abi.MESSAGE_TEXT
    assert abi.SHORTFALL.size == abi.SHORTFALL_BYTES


def test_no_figure_is_left_uncompared() -> None:
    compared = {
        *python_names(),
        "GRANT_HEADER_KEY_BYTES",
        "GRANT_CARD_UUID_BYTES",
    }
    known = {
        name for name, value in vars(abi).items() if name.isupper() and isinstance(value, int | str)
    }
    assert known == compared
