# SPDX-License-Identifier: Apache-2.0
"""NVML's figures and facts: what cannot be is none, and what odd ones come to."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.cards import nvml_calls, nvml_client
from gpushare.daemon.cards.driver_client import DriverSample, InvalidSample, ProcessUse
from tests.properties import any_json

from . import scripted_worker
from .fakes import GIB
from .scripted_worker import LOOK

OF = nvml_client.driver_description(scripted_worker.ANSWERS["load"])


def seen(**changes: Any) -> DriverSample:
    answer = {"driver": "615.10", "cards": [{**LOOK, **changes}], "xids": []}
    return nvml_client.driver_sample(answer, OF)


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"compute": [[7, 142 * GIB, None]]}, "process 7 holds"),
        ({"compute": [[7, -1, None]]}, "process 7 holds -1 bytes"),
        ({"compute": [[7, (1 << 64) - 2, None]]}, "process 7 holds"),
        ({"compute": [[7, GIB, None], [7, 2 * GIB, None]]}, "listed with"),
        ({"compute": [[0, GIB, None]]}, "there is no process 0"),
        ({"compute": [[1 << 23, GIB, None]]}, "there is no process"),
        ({"used": 0, "compute": [[7, 40 * GIB, None]]}, "its processes hold"),
        ({"used": 142 * GIB}, "are used"),
        ({"used": -1}, "-1 bytes"),
        ({"total": "much"}, "in an unknown format"),
        ({"compute": None}, "in an unknown format"),
        ({"shares": [[7, 40]]}, "in an unknown format"),
    ],
)
def test_an_impossible_value_is_refused(lie: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSample, match=why):
        seen(**lie)


LISTED = ProcessUse(7, GIB, 40, encoder_percent=5, decoder_percent=6)
IDLE = ProcessUse(8, 1, 0, encoder_percent=0, decoder_percent=0)


@pytest.mark.parametrize(
    ("said", "uses"),
    [
        ({"compute": [[7, None, None]]}, [replace(LISTED, bytes=None)]),
        ({"graphics": [[7, GIB, None]]}, [LISTED]),
        ({"graphics": [[7, GIB + 5, None]]}, [replace(LISTED, bytes=GIB + 5)]),
        ({"graphics": [[8, 1, None]]}, [LISTED, IDLE]),
        ({"compute": [[7, GIB, 1], [7, GIB, 2]]}, [replace(LISTED, bytes=2 * GIB)]),
        ({"shares": [[7, 4000, 101, 6]]}, [ProcessUse(7, GIB, decoder_percent=6)]),
        ({"shares": None}, [ProcessUse(7, GIB)]),
        ({"mps": [[7, GIB, None]]}, [replace(LISTED, is_mps=True)]),
        (
            {"mps": [[8, 5, None]]},
            [LISTED, replace(IDLE, bytes=5, is_mps=True)],
        ),
        ({"compute": []}, []),
        ({"busy": None}, [LISTED]),
    ],
)
def test_valid_replies_of_a_driver_are_accepted(
    said: dict[str, Any], uses: list[ProcessUse]
) -> None:
    assert list(seen(**said).uses["GPU-0"]) == uses


def test_sensors_are_numbers_that_can_be() -> None:
    said = {"temperature_celsius": 41, "power_milliwatts": -1, "pcie_replays": 1 << 63}
    said |= {"encoder_percent": 101, "decoder_percent": True, "sm_clock_mhz": "9", "lies": 1}  # type: ignore[dict-item]
    assert nvml_client.card_sensors({"sensors": {"GPU-0": said}}) == {
        "GPU-0": {"temperature_celsius": 41}
    }
    assert nvml_client.card_sensors({"sensors": {"GPU-0": None}}) == {}


@given(
    said=any_json(st.sampled_from([*LOOK, "error", "cards", "xids"])),
    field=st.sampled_from(sorted(LOOK)),
)
def test_no_answer_is_worse_than_implausible(said: Any, field: str) -> None:
    for answers in ([{**LOOK, field: said}], [said], said):
        with contextlib.suppress(InvalidSample):
            nvml_client.driver_sample({"driver": "615.10", "cards": answers, "xids": []}, OF)
    with contextlib.suppress(InvalidSample):
        nvml_client.new_xids({"xids": said})
    with contextlib.suppress(InvalidSample):
        nvml_client.driver_description(
            {**scripted_worker.ANSWERS["load"], "cards": [{**scripted_worker.CARD, field: said}]}
        )


SWITCH = "0000:c0:00.0"


@dataclass
class Place:
    """Where a card is, and what is at the ends of its links."""

    address: str
    ends: list[str] = field(default_factory=list)
    node: int | None = None


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Return the topology of two cards: A and B."""

    def pci(address: str) -> Any:
        domain, bus, device = address.removesuffix(".0").split(":")
        return SimpleNamespace(domain=int(domain, 16), bus=int(bus, 16), device=int(device, 16))

    def remote(card: Place, link: int) -> Any:
        return pci(card.ends[link])

    def state(card: Place, link: int) -> int:
        if link < len(card.ends):
            return int(pynvml.NVML_FEATURE_ENABLED)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    def topology(one: Place, other: Place, level: int = 50, *, nvlink: bool = False) -> Any:
        status = pynvml.NVML_P2P_STATUS_OK if nvlink else pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY
        for name, function in {
            "GetPciInfo": lambda card: pci(card.address),
            "GetNvLinkState": state,
            "GetNvLinkRemotePciInfo": remote,
            "GetP2PStatus": lambda *_: status,
            "GetTopologyCommonAncestor": lambda *_: level,
            "GetMemoryAffinity": lambda card, *_: [3 if card.node is None else 1 << card.node],
        }.items():
            monkeypatch.setattr(pynvml, f"nvmlDevice{name}", function)
        monkeypatch.setattr(nvml_calls, "SYSFS", tmp_path)
        return nvml_calls.topology({"A": one, "B": other})

    return topology


def kind(topology: Any) -> str:
    return str([link[2:] for link in topology["links"]])


def test_links_that_end_at_the_other_card_are_counted(between: Callable[..., Any]) -> None:
    one = Place("0000:01:00.0", [*["0000:02:00.0"] * 4, "0000:03:00.0"])
    other = Place("0000:02:00.0", ["0000:01:00.0"] * 4)
    assert kind(between(one, other, nvlink=True)) == "[['NV4', 6]]"


def test_through_switches_the_card_with_fewer_links_says_how_many(
    between: Callable[..., Any],
) -> None:
    one, other = Place("0000:01:00.0", [SWITCH] * 18), Place("0000:02:00.0", [SWITCH] * 12)
    assert kind(between(one, other, 40, nvlink=True)) == "[['NV12', 1]]"
    assert kind(between(one, other, 40)) == "[['NODE', 50]]"


@pytest.mark.parametrize(
    ("level", "found"),
    [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (7, "[]")],
)
def test_levels_are_called_as_nvidia_smi_calls_them(
    between: Callable[..., Any], level: int, found: str
) -> None:
    assert found in kind(between(Place("0000:01:00.0"), Place("0000:02:00.0"), level))


def test_the_kernel_says_the_node_where_nvml_does_not(
    between: Callable[..., Any], tmp_path: Path
) -> None:
    places = Place("0000:01:00.0"), Place("0000:02:00.0", node=0)
    assert between(*places)["nodes"] == {"A": -1, "B": 0}
    (tmp_path / places[0].address).mkdir()
    (tmp_path / places[0].address / "numa_node").write_text("1\n")
    assert between(*places)["nodes"] == {"A": 1, "B": 0}


# nvmlProcessUtilizationSample_t: pid, timeStamp, smUtil, memUtil, encUtil, decUtil
SAMPLE = struct.Struct("@IQIIII")


def devices(
    samples: list[bytes], otherwise: int = pynvml.NVML_ERROR_NOT_FOUND
) -> nvml_calls.Devices:
    """Return the devices of a library that reports `samples`."""

    def report(_handle: Any, array: Any, count: Any, since: ctypes.c_ulonglong) -> int:
        newer = [each for each in samples if SAMPLE.unpack(each)[1] > since.value]
        held, count._obj.value = count._obj.value, len(newer)
        if held < len(newer):
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        array[: SAMPLE.size * len(newer)] = b"".join(newer)
        return int(pynvml.NVML_SUCCESS if newer else otherwise)

    made = object.__new__(nvml_calls.Devices)
    library: Any = SimpleNamespace(nvmlDeviceGetProcessUtilization=report)
    made._library, made._room = library, ctypes.create_string_buffer(4096)
    return made


@pytest.mark.parametrize("memory", [0, 10, 100])
def test_only_kernels_are_evidence_of_compute(memory: int) -> None:
    """A driver has reported a constant use of the memory for every process."""
    now = time.time_ns() // 1000
    first, last = (now - 90, 90, 90), (now, 40, memory)
    calls = devices([SAMPLE.pack(7, *each, 5, 6) for each in (first, last)])
    assert calls._shares(None) == [[7, 40, 5, 6]]


def test_the_figures_of_all_processes_are_of_the_last_second() -> None:
    now = time.time_ns() // 1000
    old, recent = SAMPLE.pack(7, now - 1_100_000, 40, 0, 0, 0), SAMPLE.pack(8, now, 9, 0, 0, 0)
    assert devices([old, recent])._shares(None) == [[8, 9, 0, 0]]
    assert devices([old])._shares(None) == []
    unsupported = devices([], otherwise=pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert unsupported._shares(None) is None
