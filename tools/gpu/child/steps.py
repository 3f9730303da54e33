# SPDX-License-Identifier: Apache-2.0
"""Takes memory of a card, loads modules, launches kernels and raises limits step by step, as told.

    python -m tools.gpu.child.steps LIBCUDA [RUNTIME]

Sizes are bytes. Each command is one step of one way to memory, so that what the card has left can
be read between any two of them. RUNTIME is a libcudart, for the command `runtime`: the context that
it makes of its own accord. Structures and constants have the names of cuda.h.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

from tools.gpu.cuda import TARGETS, Cuda, CudaError, source

from .conversation import Answer, converse

ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL
FLOAT = 0x20  # CU_AD_FORMAT_FLOAT

POOL_RESERVED, POOL_USED = 5, 7  # CU_MEMPOOL_ATTR_...
LIMITS = {"stack": 0, "fifo": 1, "heap": 2}  # CU_LIMIT_...
JIT_INPUT_PTX = 1


class Shape(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


class Steps:
    """One process; what is taken, or loaded, last is what the next command is about."""

    def __init__(self, library: str, runtime: str = "") -> None:
        self.cuda = Cuda(library)
        self.pointers: list[int] = []
        self.arrays: list[tuple[str, c_void_p]] = []
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

    def synchronize(self) -> Answer:
        self.cuda.synchronize()
        return {}

    # --- linear and managed memory ---

    def linear(self, size: str, count: str = "1") -> Answer:
        made = [self._take("cuMemAlloc_v2", int(size)) for _ in range(int(count))]
        ordered = sorted(made)
        steps = [after - before for before, after in itertools.pairwise(ordered)]
        return {"least_step": min(steps, default=0)}

    def free(self) -> Answer:
        while self.pointers:
            self.cuda.call("cuMemFree_v2", c_uint64(self.pointers.pop()))
        return {}

    def managed(self, size: str) -> Answer:
        self._take("cuMemAllocManaged", int(size), c_uint(ATTACH_GLOBAL))
        return {}

    def touch_host(self, size: str) -> Answer:
        for offset in range(0, int(size), mmap.PAGESIZE):
            ctypes.c_ubyte.from_address(self.pointers[-1] + offset).value = 1
        return {}

    def touch_card(self, size: str) -> Answer:
        self.cuda.call(
            "cuMemsetD8_v2", c_uint64(self.pointers[-1]), ctypes.c_ubyte(1), c_size_t(int(size))
        )
        self.cuda.synchronize()
        return {}

    def prefetch(self, size: str, where: str) -> Answer:
        """`where` is "card" or "host"."""
        to = self.cuda.device if where == "card" else -1  # CU_DEVICE_CPU
        pointer, length = c_uint64(self.pointers[-1]), c_size_t(int(size))
        self.cuda.call("cuMemPrefetchAsync", pointer, length, c_int(to), None)
        self.cuda.synchronize()
        return {}

    # --- pools ---

    def stream(self, size: str) -> Answer:
        self._take("cuMemAllocAsync", int(size), None)
        return self.pool()

    def stream_free(self) -> Answer:
        while self.pointers:
            self.cuda.call("cuMemFreeAsync", c_uint64(self.pointers.pop()), None)
        return self.pool()

    def pool(self) -> Answer:
        """What the device's default pool says it holds, and what of it is allocated."""
        return {"reserved": self._pool(POOL_RESERVED), "used": self._pool(POOL_USED)}

    # --- arrays ---

    def array(self, width: str, height: str, depth: str, levels: str = "1") -> Answer:
        """An array of floats; with more than one level a mipmapped one."""
        shape = Shape(int(width), int(height), int(depth), FLOAT, 1, 0)
        made = c_void_p()
        if int(levels) > 1:
            self.cuda.call("cuMipmappedArrayCreate", byref(made), byref(shape), c_uint(int(levels)))
            self.arrays.append(("cuMipmappedArrayDestroy", made))
        else:
            self.cuda.call("cuArray3DCreate_v2", byref(made), byref(shape))
            self.arrays.append(("cuArrayDestroy", made))
        return {}

    def array_free(self) -> Answer:
        while self.arrays:
            destroy, array = self.arrays.pop()
            self.cuda.call(destroy, array)
        return {}

    # --- modules, kernels and limits ---

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
        self.cuda.call("cuCtxGetLimit", byref(value), c_int(LIMITS[name]))
        return {"value": value.value}

    def set_limit(self, name: str, value: str) -> Answer:
        self.cuda.call("cuCtxSetLimit", c_int(LIMITS[name]), c_size_t(int(value)))
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
                "cuLinkAddData_v2",
                state,
                c_int(JIT_INPUT_PTX),
                c_char_p(text),
                c_size_t(len(text) + 1),
                b"kernel",
                c_uint(0),
                None,
                None,
            )
            call("cuLinkComplete", state, byref(made), byref(size))
            return ctypes.string_at(made.value or 0, size.value)
        finally:
            self.cuda.try_call("cuLinkDestroy", state)

    def _take(self, function: str, size: int, *more: object) -> int:
        pointer = c_uint64()
        self.cuda.call(function, byref(pointer), c_size_t(size), *more)
        self.pointers.append(pointer.value)
        return pointer.value

    def _pool(self, attribute: int) -> int:
        pool, value = c_void_p(), c_uint64()
        self.cuda.call("cuDeviceGetDefaultMemPool", byref(pool), self.cuda.device)
        self.cuda.call("cuMemPoolGetAttribute", pool, attribute, byref(value))
        return value.value


if __name__ == "__main__":
    converse(Steps(*sys.argv[1:]))
