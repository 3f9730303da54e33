# SPDX-License-Identifier: Apache-2.0
"""abi.py and scheduler_sync.py say of their C headers what the C compiler says of them."""

from __future__ import annotations

import re
import struct
from typing import Final

import pytest

from gpushare import abi
from gpushare.daemon import scheduler_sync
from gpushare.oci.container import IN_CONTAINER, ON_HOST
from tests.compiled import ROOT, figures

HEADER: Final = (ROOT / "libhook/include/gpushare_abi.h").read_text()
#: Every figure of abi.py.
FIGURES: Final = {
    name: value
    for name, value in vars(abi).items()
    if name.isupper() and isinstance(value, int | str)
}
STRUCTS: Final = (
    "grant_header grant_card gate work process detail usage status_header message shortfall"
)
#: A struct in C -> its packed form, and the fields of that in their order.
PACKED: Final = {
    "gpushare_gate": (
        abi.GATE,
        (
            "mode epoch in_flight_max_ns timing_interval_ns wait_max_ns heartbeat_ns busy_ns "
            "self_throttle_permille pieces_min reserved charged_ns windows overruns demand_ns hung "
            "reserved2 claimed_ns ungated_ns"
        ),
    ),
    "gpushare_work": (
        abi.WORK,
        "done waiting busy_ns since_ns pending_ns submitted ended throttled_ns forced begun",
    ),
    "gpushare_process": (abi.PROCESS, "pid shares starttime denied denied_bytes"),
    "gpushare_detail": (abi.DETAIL, "bytes pool_kept_bytes contexts"),
    "gpushare_status_header": (abi.STATUS_HEADER, "magic abi_version high_water sharing reserved"),
    "gpushare_shortfall": (abi.SHORTFALL, "type card pid rest_bytes wanted_bytes"),
    "schedule_message": (scheduler_sync.MESSAGE, "type version key card_count reserved"),
    "schedule_share": (
        scheduler_sync.SHARE,
        "uuid permille capped online priority measured correction_permille",
    ),
    "schedule_answer": (scheduler_sync.ANSWER, "version error pid tenants time_scale"),
}
#: What C has in these beside the packed form.
MORE_BYTES: Final = {
    "schedule_message": scheduler_sync.SHARE.size * abi.MAX_CARDS,
    "gpushare_gate": 8,  # it has two lines of its own
}
SCHEDULE: Final = ("VERSION", "HELLO", "TENANT", "REMOVE", "COMPLETE")


def in_c(name: str) -> str:
    """Return what a figure of abi.py is in C: a name, or the place or size of a struct's field."""
    if re.search(rf"\bGPUSHARE_{name}\b", HEADER):
        return f"GPUSHARE_{name}"
    of = next(of for of in STRUCTS.split() if name.startswith(f"{of}_".upper()))
    field = name.removeprefix(f"{of}_".upper()).lower()
    if field == "bytes":
        return f"sizeof(struct gpushare_{of})"
    if re.search(rf"\b{field}\b", HEADER):
        return f"offsetof(struct gpushare_{of}, {field})"
    return f"sizeof((struct gpushare_{of} *)0)->{field.removesuffix('_bytes')}"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int | str]:
    asked = {name: in_c(name) for name in FIGURES}
    asked |= {f"SCHEDULE_{name}": f"SCHEDULE_{name}" for name in SCHEDULE}
    for name, (_, fields) in PACKED.items():
        asked[name] = f"sizeof(struct {name})"
        asked |= {f"{name}.{one}": f"offsetof(struct {name}, {one})" for one in fields.split()}
    asked |= {f"card {number}": f"GPUSHARE_GRANT_CARD_OFFSET({number})" for number in (0, 1, 15)}
    return figures(tmp_path_factory.mktemp("abi"), ROOT / "scheduler/message.h", asked)


def test_every_figure_is_the_one_of_the_header(compiled: dict[str, int | str]) -> None:
    own = FIGURES | {f"SCHEDULE_{name}": getattr(scheduler_sync, name) for name in SCHEDULE}
    own |= {f"card {number}": abi.grant_card_offset(number) for number in (0, 1, 15)}
    assert {name: compiled[name] for name in own} == own


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_form_has_each_field_in_its_place(
    compiled: dict[str, int | str], name: str
) -> None:
    form, fields = PACKED[name]
    order, *codes = re.findall(r"[<@]|\d*[a-z]", form.format, re.IGNORECASE)
    codes = [code for code in codes if not code.endswith("x")]
    before = ["".join(codes[:number]) for number in range(len(codes))]
    assert [
        struct.calcsize(f"{order}{part}0{code[-1]}")  # aligned for the field
        for part, code in zip(before, codes, strict=True)
    ] == [compiled[f"{name}.{field}"] for field in fields.split()]
    assert form.size + MORE_BYTES.get(name, 0) == compiled[name]


def test_containers_have_our_files_where_the_libraries_are_built_for() -> None:
    assert (IN_CONTAINER.top, ON_HOST.top) == (abi.CONTAINER_DIR, abi.HOST_DIR)
    assert (IN_CONTAINER.driver, IN_CONTAINER.tenant) == (abi.DRIVER_DIR, abi.TENANT_DIR)


def test_the_text_of_a_message_begins_behind_its_header() -> None:
    assert abi.MESSAGE_HEADER.size == abi.MESSAGE_TEXT
