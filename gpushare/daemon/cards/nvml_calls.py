# SPDX-License-Identifier: Apache-2.0
"""The driver through NVML. It runs in the worker alone.

pynvml opens `libnvidia-ml.so.1` by its name, which on the host may be another driver's, or ours. So
the file that the CDI spec names is opened first, by its path: the loader then gives that one to
a caller that opens it by name (dlopen(3): a library that is loaded already, by SONAME).

Nothing is judged here: what the library says is handed on as it is, also where it cannot be.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pynvml

GONE: Final = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})

#: NVML's brands (nvml.h, nvmlBrandType_t) as NVIDIA's container toolkit names them; of two names of
#: one, the first.
BRANDS: Final = {
    value: name.removeprefix("NVML_BRAND_").replace("_", "").lower()
    for name, value in reversed(vars(pynvml).items())
    if name.startswith("NVML_BRAND_") and value != pynvml.NVML_BRAND_UNKNOWN
}
#: Sold for data centres: Tesla, and since Ampere plain NVIDIA.
DATACENTER: Final = frozenset({"tesla", "nvidia"})

#: Those that are not the default, as nvidia-smi names them.
COMPUTE_MODES: Final = {
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "Exclusive_Thread",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "Prohibited",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "Exclusive_Process",
}

_UNKNOWN: Final = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE of usedGpuMemory
_NO_INSTANCE: Final = 0xFFFFFFFF
_SAMPLE: Final = struct.Struct("@IQI4xII")  # nvmlProcessUtilizationSample_t, without memUtil
_PROCESS: Final = struct.Struct("@IQI4x")  # nvmlProcessInfo_v2_t; the last is the compute instance
#: As NVML's functions have them. A client of an MPS server may be in the last one only.
_PROCESS_LISTS: Final = ("Compute", "Graphics", "MPSCompute")
#: Between two readings of the sensors.
_SHARES_MICROSECONDS: Final = 1_000_000
_SENSOR_SECONDS: Final = 10.0
_EVENTS_MOST: Final = 64  # of one look: a storm must not keep us from looking

NvmlReply = dict[str, Any]


def call_or_none(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what NVML answers; None for an error, and for a call that it does not have."""
    with contextlib.suppress(pynvml.NVMLError):
        return function(*arguments)
    return None


def call_if_supported(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what NVML answers; None for an error, but NVMLError of a card that is gone."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in GONE:
            raise
        return None


def failure(error: Exception) -> NvmlReply:
    """Return the answer to a question at which `error` was raised."""
    if isinstance(error, pynvml.NVMLError):
        return {"error": f"NVML: {error}", "no_limits": error.value in NO_LIMITS}
    if isinstance(error, OSError):
        return {"error": f"{error}; is the driver installed?"}
    # The answer of a library may be no text, no list.
    return {"error": f"NVML sent a response in an unknown format: {error!r}"}


class Devices:
    """NVML as the library at `library`; every method raises NVMLError. OSError: it has no such."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        pynvml.nvmlInit()
        self._uuids: dict[int, str] = {}  # by index, as last reported
        self._unified: set[int] = set()  # the indices of cards that are refused
        self._handles: dict[str, Any] = {}
        self._events: Any = None
        self._lists = {kind: self._list(kind) for kind in _PROCESS_LISTS}
        self._room = ctypes.create_string_buffer(64 * _SAMPLE.size)
        self._reported: NvmlReply = {}  # by the last look
        self._sensed = 0.0  # when the sensors were read last

    def describe(self) -> NvmlReply:
        """Return the versions and the cards; a lost card has only its index."""
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        cards = [self._card(index) for index in range(pynvml.nvmlDeviceGetCount())]
        listed = [card for card in cards if "uuid" in card]
        self._listen()
        places = topology({card["uuid"]: self._handles[card["uuid"]] for card in listed})
        for card in listed:  # an instance is where its card is
            node = places["nodes"][card["uuid"]]
            places["nodes"] |= {part["uuid"]: node for part in card["instances"]}
        return {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "cards": listed,
            "lost": [card for card in cards if "uuid" not in card],
            "limits": bool(listed) and self._has_limits(listed[0]["uuid"]),
            **places,
        }

    def look(self, *, known: bool, brief: bool = False) -> NvmlReply:
        """Return what each process takes of each card, and what has happened since the last.

        Only the latter if all else is as in the last look, and the caller has `known` that one. A
        `brief` look takes the processes for the same ones on an idle card that is used as before.
        """
        count, before = pynvml.nvmlDeviceGetCount(), self._reported["cards"] if known else ()
        same = {card["index"]: card for card in before if brief and card.get("busy") == 0}
        cards = [
            self._look(index, same.get(index))
            for index in range(count)
            if index not in self._unified
        ]
        report = {"driver": pynvml.nvmlSystemGetDriverVersion(), "cards": cards}
        is_new = not known or report != self._reported
        self._reported = report
        return {**(report if is_new else {}), **self.xids(), **self._sensors()}

    def _sensors(self) -> NvmlReply:
        """Return the sensors of each card by uuid, nothing until the next ones are due."""
        now = time.monotonic()
        if self._sensed and now - self._sensed < _SENSOR_SECONDS:
            return {}
        self._sensed = now
        return {"sensors": {uuid: read_sensors(handle) for uuid, handle in self._handles.items()}}

    def set_limits(self, uuid: str, cgroup: str, soft_bytes: int, hard_bytes: int) -> NvmlReply:
        """Limit what a cgroup has of a card."""
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t(os.fsencode(cgroup), soft_bytes, hard_bytes)
        pynvml.nvmlDeviceSetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(uuid), limits)
        return {}

    def limits(self, uuid: str, cgroup: str) -> NvmlReply:
        """Return what a cgroup may have of a card."""
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t(os.fsencode(cgroup))
        pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(uuid), limits)
        return {"soft": limits.softLimit, "hard": limits.hardLimit}

    def _has_limits(self, uuid: str) -> bool:
        """Whether the driver has limits (615 is the first), found by a request for impossible ones.

        A library may have the call and the driver behind it, or the card (MIG), not what it takes.
        """
        try:
            self.limits(uuid, "/sys/fs/cgroup")
        except pynvml.NVMLError as error:
            return error.value not in {*NO_LIMITS, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
        return True

    def _card(self, index: int) -> NvmlReply:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            model = pynvml.nvmlDeviceGetName(handle)
            if has_unified_memory(handle):
                self._unified.add(index)
                why = f"card {index} ({model}): {UNIFIED}"
                row = {  # gpushare.protocol.rows.UnifiedCard
                    "index": index,
                    "uuid": uuid,
                    "model": model.removeprefix("NVIDIA "),
                    "mode": "unified",
                    "health": "ok",
                    "schedulable_reason": why,
                }
                return {"index": index, "error": why, "unified": row}
            self._unified.discard(index)
            total, reserved = memory_of(handle)[:2]
            brand = BRANDS.get(call_or_none(pynvml.nvmlDeviceGetBrand, handle), "")
            capability = call_or_none(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
            parts = parts_of(handle)
            address = _address(call_or_none(pynvml.nvmlDeviceGetPciInfo, handle))
            card = {
                "index": index,
                "uuid": uuid,
                "model": model,
                "memory": total - reserved,
                "minor": pynvml.nvmlDeviceGetMinorNumber(handle),
                "brand": brand,
                "datacenter": brand in DATACENTER,
                "capability": None if capability is None else list(capability),
                "parts": None if parts is None else list(parts),
                "instances": [instance_facts(uuid, part) for uuid, part in (parts or {}).items()],
                # As NVML writes it: 00000000:0F:00.0.
                "bus_id": f"{address:0>16}".upper() if address else "",
            }
        except pynvml.NVMLError as error:
            return {"index": index, "error": f"NVML: {error}"}
        self._uuids[index] = uuid
        self._handles[uuid] = handle
        return card

    def _look(self, index: int, before: NvmlReply | None) -> NvmlReply:
        """Return one card's figures; of one that does not answer, why, under the name it had.

        They are those of `before` where nothing shows that they differ.
        """
        card: NvmlReply = {"index": index, "uuid": self._uuids.get(index, "")}
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            card["uuid"] = pynvml.nvmlDeviceGetUUID(handle)
            if before and not before["shares"] and {**before, **figures(handle)} == before:
                return before
            parts = parts_of(handle)
            mode = call_if_supported(pynvml.nvmlDeviceGetComputeMode, handle)
            card |= {
                "parts": None if parts is None else list(parts),
                "mode": COMPUTE_MODES.get(mode, ""),
                **self._use(handle),
                "instances": [
                    {"index": index, "uuid": uuid, **self._use(part)}
                    for uuid, part in (parts or {}).items()
                ],
            }
        except pynvml.NVMLError as error:
            return {"index": index, "uuid": card["uuid"], "error": f"NVML: {error}"}
        card["shares"] = self._shares(handle)
        busy = call_or_none(pynvml.nvmlDeviceGetUtilizationRates, handle)  # None: under MIG
        if busy is not None:
            card["busy"] = int(busy.gpu)
        return card

    def _use(self, handle: Any) -> NvmlReply:
        """Return what is used of a card, or of an instance, and by which processes."""
        before = memory_of(handle)
        compute = self._processes("Compute", handle)
        # NOT_SUPPORTED: a card without graphics, a driver without the list.
        graphics = call_if_supported(self._processes, "Graphics", handle) or []
        # A server is a compute process: without any, it has no clients.
        mps = call_if_supported(self._processes, "MPSCompute", handle) if compute else []
        total, _, used = memory_of(handle)
        # Taken before and after the lists: what changed between is no contradiction.
        lists = {"compute": compute, "graphics": graphics, "mps": mps or [], "shares": None}
        return {**lists, "total": total, "used": max(used, before[2])}

    def _processes(self, kind: str, handle: Any) -> list[list[int | None]]:
        """Return pid, bytes and MIG instance of each; None: not reported, or not of one."""
        function = self._lists[kind]
        if function is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        entries = self._fill(_PROCESS.size, lambda count, room: int(function(handle, count, room)))
        return [
            [pid, None if size == _UNKNOWN else size, None if part == _NO_INSTANCE else part]
            for pid, size, part in _PROCESS.iter_unpack(entries)
        ]

    def _fill(self, size: int, call: Callable[[Any, Any], int]) -> memoryview:
        """Return the items, of `size` bytes each, that `call` lists by their count and an array.

        pynvml makes an object of each and asks twice: too dear for what is done all day.
        """
        while True:
            count = ctypes.c_uint(len(self._room) // size)
            code = call(ctypes.byref(count), self._room)
            if code == pynvml.NVML_SUCCESS:
                return memoryview(self._room)[: count.value * size]
            if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                raise pynvml.NVMLError(code)
            self._room = ctypes.create_string_buffer((2 * count.value + 8) * size)

    def _list(self, kind: str) -> Any:
        """Return the newest call that lists processes; 2 and 3 are of drivers from 470 on."""
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        return getattr(self._library, f"{name}_v3", getattr(self._library, f"{name}_v2", None))

    def _shares(self, handle: Any) -> list[list[int]] | None:
        """Return pid, and percent of the card's time in the last second; None: not known.

        After it, percent of the encoder's and of the decoder's time. A process that is not listed
        had nothing. The driver counts each 0.2 s of a card for the one process that had it last,
        and reports the mean since a moment (seen on an H100), so that figures add up only if all
        are asked for since the same moment, and several samples ago.
        """
        function = getattr(self._library, "nvmlDeviceGetProcessUtilization", None)
        if function is None:
            return None
        since = ctypes.c_ulonglong(time.time_ns() // 1000 - _SHARES_MICROSECONDS)
        try:
            samples = self._fill(
                _SAMPLE.size, lambda count, room: int(function(handle, room, count, since))
            )
        except pynvml.NVMLError as error:  # NOT_SUPPORTED: before Maxwell, or under MIG
            return [] if error.value == pynvml.NVML_ERROR_NOT_FOUND else None
        newest: dict[int, tuple[int, ...]] = {}
        # The use of its memory says nothing of compute: a driver has reported a constant 10 %.
        for pid, *sample in _SAMPLE.iter_unpack(samples):
            newest[pid] = max(newest.get(pid, ()), tuple(sample))
        return [[pid, *percents] for pid, (_, *percents) in newest.items()]

    def _listen(self) -> None:
        """Register for XIDs; a driver or a card that cannot report any is healthy without."""
        with contextlib.suppress(pynvml.NVMLError):
            self._events = pynvml.nvmlEventSetCreate()
            for handle in self._handles.values():
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlDeviceRegisterEvents(
                        handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                    )

    def xids(self) -> NvmlReply:
        """Return uuid and number of each XID since the last call; "" for a card not known."""
        xids: list[list[Any]] = []
        while self._events is not None and len(xids) < _EVENTS_MOST:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    self._events = None  # GPU_IS_LOST: until the library is reloaded
                break
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                xids.append([self._uuid_of(event.device), int(event.eventData)])
        return {"xids": xids}

    def _uuid_of(self, handle: Any) -> str:
        address = ctypes.cast(handle, ctypes.c_void_p).value
        for uuid, known in self._handles.items():
            if ctypes.cast(known, ctypes.c_void_p).value == address:
                return uuid
        return ""


#: Answers of a driver that will never hold a limit.
NO_LIMITS: Final = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION})


# --- where cards are, and what is between them ---
#
# They are gathered once each time that the driver is loaded: nothing of them changes beneath a
# driver. A driver that knows no such call, or has no answer, leaves its part out.

SYSFS: Final = Path("/sys/bus/pci/devices")
_NODES_MOST: Final = 1024  # MAX_NUMNODES of Linux is that at most (mm/Kconfig, NODES_SHIFT)
_WORD_BITS: Final = 8 * ctypes.sizeof(ctypes.c_ulong)
_ONE_NVLINK: Final = 9
_KINDS: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_BELOW_NVLINK: Final = 10


def topology(handles: Mapping[str, Any]) -> NvmlReply:
    """Return the `links` between each two cards of `handles` (by UUID), and their NUMA `nodes`.

    The kinds of links are those that `nvidia-smi topo -m` prints, the distances NVML's own levels
    (nvml.h, nvmlGpuTopologyLevel_t: 0 on one board, 10 one switch, 20 several, 30 a host bridge,
    40 one NUMA node, 50 across) with a ten added, so that NVLink, which no level has, is nearer
    than any, and of more links nearer.
    """
    addresses = {
        uuid: _address(call_or_none(pynvml.nvmlDeviceGetPciInfo, handle))
        for uuid, handle in handles.items()
    }
    ends = {uuid: _ends(handle) for uuid, handle in handles.items() if len(handles) > 1}
    nodes = {uuid: _node(handle, addresses[uuid]) for uuid, handle in handles.items()}
    links = []
    for one, other in combinations(handles, 2):
        both = handles[one], handles[other]
        count = ends[one].count(addresses[other])
        status = call_or_none(
            pynvml.nvmlDeviceGetP2PStatus, *both, pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        )
        if not count and status == pynvml.NVML_P2P_STATUS_OK:
            # Through switches: as many links as the one with fewer has to what is no card.
            cards = {*addresses.values()}
            count = min(sum(end not in cards for end in ends[uuid]) or 1 for uuid in (one, other))
        level = call_or_none(pynvml.nvmlDeviceGetTopologyCommonAncestor, *both)
        if count:
            links.append([one, other, f"NV{count}", max(1, _ONE_NVLINK + 1 - count)])
        elif level in _KINDS:
            links.append([one, other, _KINDS[level], level + _BELOW_NVLINK])
    return {"links": links, "nodes": nodes}


def _node(handle: Any, address: str) -> int:
    """Return the one node whose memory is the card's; where NVML has none or several, the kernel's.

    Linux, Documentation/ABI/testing/sysfs-bus-pci, numa_node: -1 if it has none.
    """
    words = _NODES_MOST // _WORD_BITS
    scope = pynvml.NVML_AFFINITY_SCOPE_NODE
    mask = call_or_none(pynvml.nvmlDeviceGetMemoryAffinity, handle, words, scope)
    nodes = [
        place * _WORD_BITS + bit
        for place, word in enumerate(mask or ())
        for bit in range(_WORD_BITS)
        if word >> bit & 1
    ]
    if len(nodes) == 1:
        return nodes[0]
    try:
        return int((SYSFS / address / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1


def _ends(handle: Any) -> list[str]:
    """Return what is at the end of each link that is up."""
    ends = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = call_or_none(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break  # a card without links, or behind its last one
        if state != pynvml.NVML_FEATURE_ENABLED:
            continue
        if end := _address(call_or_none(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)):
            ends.append(end)
    return ends


def _address(pci: Any) -> str:
    """Return a PCI address as sysfs writes it: its folder in /sys/bus/pci/devices; "" of None."""
    return "" if pci is None else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


# --- a card's temperature, power, clocks and error counters ---
#
# Nobody decides by them, so they are read seldom. What the card or the driver does not have is left
# out. nvmlDeviceGetPcieThroughput is not called: it takes 20 ms (nvml.h).


def _memory_temperature(handle: Any) -> int:
    [value] = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _ecc_errors(kind: int, handle: Any) -> Any:
    return pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_AGGREGATE_ECC)


#: The call that reads each key of gpushare.protocol.rows.CardSensors, with what it takes.
_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "temperature_celsius": lambda handle: pynvml.nvmlDeviceGetTemperature(
        handle, pynvml.NVML_TEMPERATURE_GPU
    ),
    "memory_temperature_celsius": _memory_temperature,
    "power_milliwatts": pynvml.nvmlDeviceGetPowerUsage,
    "energy_millijoules": pynvml.nvmlDeviceGetTotalEnergyConsumption,
    "sm_clock_mhz": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
    "memory_copy_percent": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).memory,
    "encoder_percent": lambda handle: pynvml.nvmlDeviceGetEncoderUtilization(handle)[0],
    "decoder_percent": lambda handle: pynvml.nvmlDeviceGetDecoderUtilization(handle)[0],
    "pcie_replays": pynvml.nvmlDeviceGetPcieReplayCounter,
    "correctable_rows": lambda handle: pynvml.nvmlDeviceGetRemappedRows(handle)[0],
    "uncorrectable_rows": lambda handle: pynvml.nvmlDeviceGetRemappedRows(handle)[1],
    "row_remap_failures": lambda handle: pynvml.nvmlDeviceGetRemappedRows(handle)[3],
    "corrected_ecc_errors": partial(_ecc_errors, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    "uncorrected_ecc_errors": partial(_ecc_errors, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    "reserved_bytes": lambda handle: (
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).reserved
    ),
}


def read_sensors(handle: Any) -> dict[str, int]:
    """Return what NVML tells of one card."""
    figures = {}
    for name, function in _READ.items():
        with contextlib.suppress(pynvml.NVMLError):
            figures[name] = int(function(handle))
    return figures


# --- one card, or one MIG instance, by its handle ---


def parts_of(handle: Any) -> dict[str, Any] | None:
    """Return the handles of a card's MIG instances by UUID, None of one that is whole."""
    mode = call_if_supported(pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    count = call_if_supported(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    if count is None:
        return None
    parts = {}
    for index in range(count):
        with contextlib.suppress(pynvml.NVMLError):  # NOT_FOUND: none at that place
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            parts[str(pynvml.nvmlDeviceGetUUID(part))] = part
    return parts


def instance_facts(uuid: str, handle: Any) -> NvmlReply:
    """Return what a MIG instance is, without what it has of its card."""
    total, reserved = memory_of(handle)[:2]
    return {
        "uuid": uuid,
        "model": pynvml.nvmlDeviceGetName(handle),
        "memory": total - reserved,
        "number": pynvml.nvmlDeviceGetIndex(handle),
        "gpu_instance": pynvml.nvmlDeviceGetGpuInstanceId(handle),
        "compute_instance": pynvml.nvmlDeviceGetComputeInstanceId(handle),
    }


def figures(handle: Any) -> NvmlReply:
    """Return the figures of a card that differ as soon as something runs on it, or allocates."""
    total, _, used = memory_of(handle)
    rates = call_or_none(pynvml.nvmlDeviceGetUtilizationRates, handle)
    parts = parts_of(handle)
    return {
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "busy": rates and int(rates.gpu),
        "total": total,
        "used": used,
        "parts": None if parts is None else list(parts),
    }


UNIFIED: Final = (
    "it has no memory of its own but the machine's (unified memory), so gpushare cannot share it "
    "by quota; run its containers without gpushare"
)


def has_unified_memory(handle: Any) -> bool:
    """Whether NVML reports no total of the card's memory, or the machine's."""
    try:
        total = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    except pynvml.NVMLError_NotSupported:
        return True
    return bool(total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def memory_of(handle: Any) -> tuple[int, int, int]:
    """Return the card's total, what of it the driver keeps (only v2 tells), and what is used."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError_FunctionNotFound:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.total), 0, int(memory.used)
    return int(memory.total), int(memory.reserved), int(memory.used)
