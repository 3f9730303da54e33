# SPDX-License-Identifier: Apache-2.0
"""A client of the CUDA driver's C interface, as thin as measuring with it allows."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

KERNELS = Path(__file__).resolve().parent / "kernels"
#: A driver newer than the architecture that a kernel names may refuse it: then the next is tried.
#: Each with the first PTX version that knows it.
TARGETS = (("6.0", "sm_50"), ("6.3", "sm_75"), ("7.8", "sm_90"))
MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED
SUCCESS = 0


class CudaError(RuntimeError):
    """A driver function did not return CUDA_SUCCESS."""

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function}: {name} ({code})")
        self.code = code


def source(kernel: str, version: str, target: str) -> str:
    """Return the PTX of kernels/`kernel`.ptx for PTX `version` and architecture `target`."""
    text = (KERNELS / f"{kernel}.ptx").read_text()
    head, body = text.split(".version 6.0\n.target sm_50\n")
    return f"{head}.version {version}\n.target {target}\n{body}"


class Cuda:
    """The driver library `path`, initialised, and its device `card`."""

    def __init__(self, path: str = "libcuda.so.1", card: int = 0) -> None:
        self.library = ctypes.CDLL(path)
        self.call("cuInit", 0)
        self.device = self._read_int("cuDeviceGet", card)

    def call(self, function: str, *arguments: object) -> None:
        """Call `function`; CudaError unless it succeeds, AttributeError where there is none."""
        code = self.try_call(function, *arguments)
        if code != SUCCESS:
            raise CudaError(function, code, self.error_name(code))

    def try_call(self, function: str, *arguments: object) -> int:
        return int(getattr(self.library, function)(*arguments))

    def error_name(self, code: int) -> str:
        name = ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(name))
        return (name.value or b"unknown").decode()

    @property
    def version(self) -> int:
        """The newest CUDA version the driver speaks: 13000 is 13.0."""
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    @property
    def multiprocessors(self) -> int:
        return self._read_int("cuDeviceGetAttribute", MULTIPROCESSOR_COUNT, self.device)

    @property
    def in_mps(self) -> int:
        """What the driver says of itself as a client of an MPS server: 1 or 0."""
        return self._read_int("cuDeviceGetAttribute", MPS_ENABLED, self.device)

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", text, len(text), self.device)
        return text.value.decode(errors="replace")

    @property
    def total_bytes(self) -> int:
        total = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(total), self.device)
        return total.value

    @property
    def free_bytes(self) -> int:
        """What the card of this thread's context has free."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def use_context(self) -> None:
        """Make the device's primary context this thread's."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def function(self, kernel: str) -> ctypes.c_void_p:
        """Return the kernel of kernels/`kernel`.ptx, compiled by the driver for this card."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        code = SUCCESS
        for target in TARGETS:
            image = source(kernel, *target).encode()
            code = self.try_call("cuModuleLoadData", ctypes.byref(module), image)
            if code == SUCCESS:
                break
        else:
            raise CudaError("cuModuleLoadData", code, self.error_name(code))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        return function

    def allocate(self, size: int) -> int:
        """Return the address of `size` zeroed bytes on the card."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        self.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        return pointer.value

    def launch(
        self,
        function: ctypes.c_void_p,
        arguments: Sequence[int],
        blocks: int = 1,
        threads: int = 1,
        stream: ctypes.c_void_p | None = None,
    ) -> None:
        """Launch on `stream`, else the default; every parameter of our kernels is a 64-bit word."""
        words = [ctypes.c_uint64(argument) for argument in arguments]
        parameters = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
        self.call(
            "cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, None
        )

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    def _read_int(self, function: str, *arguments: int) -> int:
        value = ctypes.c_int()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value
