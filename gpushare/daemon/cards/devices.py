# SPDX-License-Identifier: Apache-2.0
"""The driver through NVML: the only module that knows pynvml.

pynvml opens `libnvidia-ml.so.1` by its name, which on the host may be another driver's, or ours. So
the file that the CDI spec names is opened first, by its path: the loader then gives that one to
whoever asks for the name (dlopen(3): a library that is loaded already, by SONAME).

NVML can hang with the driver. One thread alone calls it, and who asks it waits until a deadline and
no longer; while a question hangs every further one fails at once, and what was known is stale.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml

from gpushare.daemon.cards.card import Card, DriverError, DriverSilent, Limits, Sample, Use

Result = TypeVar("Result")

_UNKNOWN: Final = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE of usedGpuMemory


class _SetLimits(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t; the pynvml of older drivers does not have it."""

    _fields_ = (
        ("name_space", ctypes.c_char_p),  # a cgroup's directory
        ("soft_bytes", ctypes.c_ulonglong),
        ("hard_bytes", ctypes.c_ulonglong),
    )


class _GetLimits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""

    _fields_ = (*_SetLimits._fields_, ("used_bytes", ctypes.c_ulonglong))


class _Question:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


class Nvml:
    """NVML as the library at `library`; DriverError when it cannot be loaded or answers nothing.

    `env` is set in this process first: a simulated driver finds its device by it. `deadline` is in
    seconds, for each question.
    """

    def __init__(self, library: Path, env: Mapping[str, str], deadline: float) -> None:
        self._library = library
        self._deadline = deadline
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._hanging: _Question | None = None
        self._library_handle: ctypes.CDLL | None = None
        self._seen_ns: dict[str, int] = {}  # newest utilisation sample by uuid, microseconds
        os.environ.update(env)
        threading.Thread(target=self._serve, name="driver", daemon=True).start()
        try:
            self._ask(self._load)
            self.driver_version: str = self._ask(pynvml.nvmlSystemGetDriverVersion)
            self.cuda_version: str = self._ask(_cuda_version)
            self._cards: tuple[Card, ...] = self._ask(_cards)
            self.has_limits: bool = self._ask(self._finds_limits)
        except BaseException:
            self._questions.put(None)
            raise

    def cards(self) -> tuple[Card, ...]:
        """Return the cards that were there when the driver was loaded."""
        return self._cards

    def sample(self) -> Sample:
        """Return what each process takes of each card."""
        return self._ask(self._sample)

    def set_limits(self, uuid: str, cgroup: Path, limits: Limits) -> None:
        """Limit what a cgroup has of a card; DriverError where the driver does not."""
        asked = _SetLimits(os.fsencode(cgroup), limits.soft_bytes, limits.hard_bytes)
        self._ask(lambda: self._limits_call("nvmlDeviceSetMemoryLimits_v1", uuid, asked))

    def limits(self, uuid: str, cgroup: Path) -> Limits:
        """Return what a cgroup may have of a card."""
        found = _GetLimits(os.fsencode(cgroup))
        self._ask(lambda: self._limits_call("nvmlDeviceGetMemoryLimits_v1", uuid, found))
        return Limits(found.soft_bytes, found.hard_bytes)

    def _finds_limits(self) -> bool:
        """Whether the driver has limits (615 is the first), told by asking for some that are not.

        A library may have the call and the driver behind it, or the card (MIG), not what it takes.
        """
        if not self._cards or not hasattr(self._library_handle, "nvmlDeviceSetMemoryLimits_v1"):
            return False
        self.has_limits = True
        with contextlib.suppress(pynvml.NVMLError):
            found = _GetLimits(b"/sys/fs/cgroup")
            self._limits_call("nvmlDeviceGetMemoryLimits_v1", self._cards[0].uuid, found)
        return self.has_limits

    def _limits_call(self, name: str, uuid: str, argument: ctypes.Structure) -> None:
        function = getattr(self._library_handle, name, None)
        if function is None:
            raise DriverError(f"{self._library} has no {name}")
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        code = function(handle, ctypes.byref(argument))
        if code in {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION}:
            self.has_limits = False  # nor for the next tenant
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)

    def _ask(self, function: Callable[[], Result]) -> Result:
        if self._hanging is not None and not self._hanging.done.is_set():
            raise DriverSilent("the NVIDIA driver does not answer")
        question = _Question(function)
        self._questions.put(question)
        if not question.done.wait(self._deadline):
            self._hanging = question
            raise DriverSilent(f"the NVIDIA driver did not answer in {self._deadline:g} s")
        if isinstance(question.error, pynvml.NVMLError):
            raise DriverError(f"NVML: {question.error}") from question.error
        if question.error is not None:
            raise question.error
        result: Result = question.result
        return result

    def _serve(self) -> None:
        while (question := self._questions.get()) is not None:
            try:
                question.result = question.function()
            except BaseException as error:  # noqa: BLE001 - raised again by the one who asks
                question.error = error
            question.done.set()

    def _load(self) -> None:
        try:
            self._library_handle = ctypes.CDLL(str(self._library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise DriverError(f"{self._library}: {error}; is the driver installed?") from error
        pynvml.nvmlInit()

    def _sample(self) -> Sample:
        uses: dict[str, tuple[Use, ...]] = {}
        health: dict[str, str] = {}
        busy: dict[str, int] = {}
        for card in self._cards:
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(card.uuid)
                uses[card.uuid] = self._uses(handle, card)
            except pynvml.NVMLError as error:
                health[card.uuid] = str(error)  # one lost card; the others are well
                continue
            with contextlib.suppress(pynvml.NVMLError):  # NOT_SUPPORTED: under MIG
                busy[card.uuid] = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        return Sample(time.monotonic_ns(), uses, health, busy)

    def _uses(self, handle: Any, card: Card) -> tuple[Use, ...]:
        held: dict[int, int | None] = {}
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            held[process.pid] = _bytes(process.usedGpuMemory)
        for process in _graphics(handle):
            # A process of both kinds is in both lists with the same figure.
            held.setdefault(process.pid, _bytes(process.usedGpuMemory))
        shares = self._utilisation(handle, card)
        return tuple(Use(pid, size, shares.get(pid)) for pid, size in sorted(held.items()))

    def _utilisation(self, handle: Any, card: Card) -> dict[int, int]:
        """Return the percent of the card's time by pid since the last look, where it is known."""
        since = self._seen_ns.get(card.uuid, 0)
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
        except pynvml.NVMLError:
            return {}  # NOT_FOUND: nothing ran; NOT_SUPPORTED: before Maxwell, or under MIG
        newest: dict[int, Any] = {}
        for sample in samples:
            if sample.pid not in newest or sample.timeStamp > newest[sample.pid].timeStamp:
                newest[sample.pid] = sample
        if newest:
            self._seen_ns[card.uuid] = max(sample.timeStamp for sample in newest.values())
        return {pid: int(sample.smUtil) for pid, sample in newest.items()}


def _graphics(handle: Any) -> list[Any]:
    try:
        return list(pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
    except pynvml.NVMLError:
        return []  # NOT_SUPPORTED: a card without graphics


def _bytes(value: int | None) -> int | None:
    return None if value is None or value == _UNKNOWN else value


def _cuda_version() -> str:
    version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    return f"{version // 1000}.{version % 1000 // 10}"


def _cards() -> tuple[Card, ...]:
    return tuple(_card(index) for index in range(pynvml.nvmlDeviceGetCount()))


def _card(index: int) -> Card:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Card(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        model=pynvml.nvmlDeviceGetName(handle).removeprefix("NVIDIA "),
        memory_bytes=_memory(handle),
        minor=pynvml.nvmlDeviceGetMinorNumber(handle),
        datacenter=_is_datacenter(handle),
    )


def _is_datacenter(handle: Any) -> bool:
    """Whether it is sold for data centres: Tesla, and since Ampere plain NVIDIA."""
    try:
        brand = pynvml.nvmlDeviceGetBrand(handle)
    except pynvml.NVMLError:
        return False
    return brand in {pynvml.NVML_BRAND_TESLA, pynvml.NVML_BRAND_NVIDIA}


def _memory(handle: Any) -> int:
    """Return the card's memory less what the driver keeps, which only v2 of the call tells."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError_FunctionNotFound:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    return int(memory.total) - int(memory.reserved)
