# SPDX-License-Identifier: Apache-2.0
"""Makes contexts, loads modules and launches kernels step by step, as told.

    python -m tools.gpu.child.steps LIBCUDA [RUNTIME]

What the card has left can be read between any two commands. RUNTIME is a libcudart, for the command
`runtime`: the context that it makes of its own accord.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p

from tools.gpu.cuda import TARGETS, Cuda, CudaError, source

from .conversation import Answer, converse


class Steps:
    """One process; the module that was loaded last is what the next command is about."""

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

    def second_context(self) -> Answer:
        self.cuda.make_context()
        return {}

    def info(self) -> Answer:
        free, total = c_size_t(), c_size_t()
        self.cuda.call("cuMemGetInfo_v2", byref(free), byref(total))
        return {"free": free.value, "total": total.value}

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

    def loading(self) -> Answer:
        """Whether modules are loaded when they are loaded, or when they are first used."""
        mode = c_int()
        self.cuda.call("cuModuleGetLoadingMode", byref(mode))
        return {"mode": {1: "EAGER", 2: "LAZY"}.get(mode.value, str(mode.value))}

    def load(self, kernel: str) -> Answer:
        """Load the module of kernels/`kernel`.ptx."""
        for target in TARGETS:
            image = source(kernel, *target).encode()
            try:
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


if __name__ == "__main__":
    converse(Steps(*sys.argv[1:]))
