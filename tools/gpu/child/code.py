# SPDX-License-Identifier: Apache-2.0
"""Loads modules, launches kernels and raises limits step by step, as told.

    python -m tools.gpu.child.code LIBCUDA [RUNTIME]

RUNTIME is a libcudart, for the command `runtime`: the context that it makes of its own accord.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p

from tools.gpu import structures as cu
from tools.gpu.cuda import TARGETS, Cuda, CudaError, source

from .conversation import Answer, converse


class Code:
    """One process's modules and limits; the module loaded last is what is launched."""

    def __init__(self, library: str, runtime: str = "") -> None:
        self.cuda = Cuda(library)
        self.runtime_library = runtime
        self.module = c_void_p()
        self.function = c_void_p()
        self.kernel = ""
        self.result = 0

    def context(self) -> Answer:
        self.cuda.use_context()
        return {}

    def scratch(self) -> Answer:
        """Allocate the 8 bytes that kernels write to."""
        self.result = self.cuda.allocate(8)
        return {}

    def runtime(self) -> Answer:
        """Let the runtime library make its context, as any program of it does."""
        if not self.runtime_library:
            raise RuntimeError("no libcudart was found here")
        runtime = ctypes.CDLL(self.runtime_library)
        code = runtime.cudaFree(c_void_p())
        if code:
            raise RuntimeError(f"cudaFree: {code}")
        flags, active = c_uint(), c_int()
        self.cuda.call("cuDevicePrimaryCtxGetState", self.cuda.device, byref(flags), byref(active))
        return {"primary_is_active": bool(active.value)}

    def info(self) -> Answer:
        free, total = c_size_t(), c_size_t()
        self.cuda.call("cuMemGetInfo_v2", byref(free), byref(total))
        return {"free": free.value, "total": total.value}

    def loading(self) -> Answer:
        """Whether modules are loaded when they are loaded, or when they are first used."""
        mode = c_int()
        self.cuda.call("cuModuleGetLoadingMode", byref(mode))
        return {"mode": {1: "EAGER", 2: "LAZY"}.get(mode.value, str(mode.value))}

    def load(self, kernel: str, form: str = "ptx") -> Answer:
        """Load the module of kernels/`kernel`.ptx, as text or, `form` "cubin", linked before."""
        for target in TARGETS:
            text = source(kernel, *target).encode()
            try:
                image = self._linked(text) if form == "cubin" else text
                self.cuda.call("cuModuleLoadData", byref(self.module), image)
            except CudaError as error:
                refused = error
                continue
            self.kernel = kernel
            return {"target": target[1], "bytes": len(image)}
        raise refused

    def find(self) -> Answer:
        name = self.kernel.encode()
        self.cuda.call("cuModuleGetFunction", byref(self.function), self.module, name)
        return {}

    def launch(self, *arguments: str) -> Answer:
        """Launch one thread; "result" among `arguments` is the address of 8 bytes on the card."""
        words = [self.result if word == "result" else int(word) for word in arguments]
        self.cuda.launch(self.function, words)
        self.cuda.synchronize()
        return {}

    def unload(self) -> Answer:
        self.cuda.call("cuModuleUnload", self.module)
        return {}

    def limit(self, name: str) -> Answer:
        value = c_size_t()
        self.cuda.call("cuCtxGetLimit", byref(value), c_int(cu.LIMITS[name]))
        return {"value": value.value}

    def set_limit(self, name: str, value: str) -> Answer:
        self.cuda.call("cuCtxSetLimit", c_int(cu.LIMITS[name]), c_size_t(int(value)))
        return self.limit(name)

    def threads(self) -> Answer:
        """How many threads the card runs at once at most."""
        most = c_int()
        attribute = 39  # CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR
        self.cuda.call("cuDeviceGetAttribute", byref(most), c_int(attribute), self.cuda.device)
        return {"threads": most.value * self.cuda.multiprocessors}

    def _linked(self, text: bytes) -> bytes:
        """Return the cubin that the driver's own linker makes of PTX."""
        state, made, size = c_void_p(), c_void_p(), c_size_t()
        call = self.cuda.call
        call("cuLinkCreate_v2", c_uint(0), None, None, byref(state))
        try:
            call(
                *("cuLinkAddData_v2", state, c_int(cu.JIT_INPUT_PTX), c_char_p(text)),
                *(c_size_t(len(text) + 1), b"kernel", c_uint(0), None, None),
            )
            call("cuLinkComplete", state, byref(made), byref(size))
            return ctypes.string_at(made.value or 0, size.value)
        finally:
            self.cuda.try_call("cuLinkDestroy", state)


def main() -> None:
    code = Code(*sys.argv[1:])
    names = [name for name in vars(Code) if not name.startswith("_")]
    converse({name: getattr(code, name) for name in names})


if __name__ == "__main__":
    main()
