# SPDX-License-Identifier: Apache-2.0
"""Takes memory of a card step by step, as told, with an account of what the driver says it holds.

    python -m tools.gpu.child.memory LIBCUDA

Sizes are bytes. Each command is one step of one way to memory, so that what the card has left can
be read between any two of them.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from tools.gpu import structures as cu
from tools.gpu.cuda import Cuda

from .conversation import Answer, converse


class Memory:
    """One process's memory; what is taken last is what the next command is about."""

    def __init__(self, library: str) -> None:
        self.cuda = Cuda(library)
        self.pointers: list[int] = []
        self.arrays: list[tuple[str, c_void_p]] = []
        self.graphs: list[c_void_p] = []

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
        self._take("cuMemAllocManaged", int(size), c_uint(cu.ATTACH_GLOBAL))
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
        return {"reserved": self._pool(cu.POOL_RESERVED), "used": self._pool(cu.POOL_USED)}

    # --- arrays ---

    def array(self, width: str, height: str, depth: str, levels: str = "1") -> Answer:
        """An array of floats; with more than one level a mipmapped one."""
        shape = cu.Shape(int(width), int(height), int(depth), cu.FLOAT, 1, 0)
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

    # --- graphs ---

    def graph(self, size: str) -> Answer:
        """Instantiate a graph that allocates `size` bytes and frees them again."""
        graph, executable = c_void_p(), c_void_p()
        taken, given = c_void_p(), c_void_p()
        node = cu.AllocationNode(size=int(size))
        node.pool.type = cu.PINNED
        node.pool.location = cu.Location(cu.ON_DEVICE, self.cuda.device)
        call = self.cuda.call
        call("cuGraphCreate", byref(graph), 0)
        call("cuGraphAddMemAllocNode", byref(taken), graph, None, c_size_t(0), byref(node))
        pointer = c_uint64(node.pointer)
        call("cuGraphAddMemFreeNode", byref(given), graph, byref(taken), c_size_t(1), pointer)
        call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
        call("cuGraphDestroy", graph)
        self.graphs.append(executable)
        return self.graph_memory()

    def graph_upload(self) -> Answer:
        self.cuda.call("cuGraphUpload", self.graphs[-1], None)
        self.cuda.synchronize()
        return self.graph_memory()

    def graph_launch(self) -> Answer:
        self.cuda.call("cuGraphLaunch", self.graphs[-1], None)
        self.cuda.synchronize()
        return self.graph_memory()

    def graph_free(self) -> Answer:
        while self.graphs:
            self.cuda.call("cuGraphExecDestroy", self.graphs.pop())
        return self.graph_memory()

    def graph_trim(self) -> Answer:
        self.cuda.call("cuDeviceGraphMemTrim", self.cuda.device)
        return self.graph_memory()

    def graph_memory(self) -> Answer:
        """What the device's memory for graphs says it holds, and what of it is allocated."""
        return {"reserved": self._graph(cu.GRAPH_RESERVED), "used": self._graph(cu.GRAPH_USED)}

    # --- physical memory ---

    def granularity(self) -> Answer:
        answer: Answer = {}
        for name, which in cu.GRANULARITY.items():
            size = c_size_t()
            properties = cu.on_card(self.cuda.device)
            self.cuda.call(
                "cuMemGetAllocationGranularity", byref(size), byref(properties), c_int(which)
            )
            answer[name] = size.value
        return answer

    def _take(self, function: str, size: int, *more: object) -> int:
        pointer = c_uint64()
        self.cuda.call(function, byref(pointer), c_size_t(size), *more)
        self.pointers.append(pointer.value)
        return pointer.value

    def _default_pool(self) -> c_void_p:
        pool = c_void_p()
        self.cuda.call("cuDeviceGetDefaultMemPool", byref(pool), self.cuda.device)
        return pool

    def _pool(self, attribute: int) -> int:
        value = c_uint64()
        self.cuda.call("cuMemPoolGetAttribute", self._default_pool(), attribute, byref(value))
        return value.value

    def _graph(self, attribute: int) -> int:
        value = c_uint64()
        function = "cuDeviceGetGraphMemAttribute"
        self.cuda.call(function, self.cuda.device, attribute, byref(value))
        return value.value


def main() -> None:
    memory = Memory(sys.argv[1])
    names = [name for name in vars(Memory) if not name.startswith("_")]
    converse({name: getattr(memory, name) for name in names})


if __name__ == "__main__":
    main()
