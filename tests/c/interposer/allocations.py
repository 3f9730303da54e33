# SPDX-License-Identifier: Apache-2.0
"""The ways to take memory of a card, under the names by which tests and tools/gpu ask for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64, c_void_p
from functools import partial
from typing import Any, Final

from . import client
from .client import call, made

NOT_PERMITTED: Final = 800
#: In the order in which frameworks come to them.
ALLOCATION_PATHS: Final = (
    *("buffer", "pitch", "managed", "async", "async_ptsz", "pool", "pool_ptsz", "physical"),
    *("mapped", "array", "mipmapped", "graph", "module", "limit", "external"),
)
_ROW: Final = 4096 * 16  # bytes, of an array


class TakenMemory:
    """What a process has taken of `device`, by number, in the primary context."""

    def __init__(self, device: int = 0) -> None:
        call("cuInit", 0)
        client.primary(device)
        self._device = device
        self._pool = client.pool_create(device)
        self._heap = client.limit(client.HEAP)
        self._numbers = itertools.count()
        self._held: dict[int, tuple[str, Any]] = {}
        self._paths: dict[str, tuple[Callable[[int], Any], Callable[[Any], object]]] = {
            "buffer": (client.alloc, client.free),
            "pitch": (client.alloc_pitch, client.free),
            "managed": (client.alloc_managed, client.free),
            "physical": (self._create, client.release),
            "mapped": (self._take_mapped, self._give_mapped),
            "array": (lambda size: made("cuArray3DCreate_v2", _shape(size)), client.destroy),
            "mipmapped": (
                lambda size: made("cuMipmappedArrayCreate", _shape(size), 1),
                client.destroy_mipmap,
            ),
            "graph": (self._take_graph, self._give_graph),
            "module": (lambda size: client.module(client.image(size)), client.unload),
            "limit": (self._take_limit, lambda _: client.set_limit(client.HEAP, self._heap)),
            "external": (client.import_external, client.destroy_external),
        }
        for form in ("", "_ptsz"):
            give = partial(client.free_async, suffix=form)
            self._paths[f"async{form}"] = partial(client.alloc_async, suffix=form), give
            pooled = partial(client.pool_alloc, self._pool, suffix=form)
            self._paths[f"pool{form}"] = pooled, give

    def take(self, path: str, size: int) -> int:
        """Return the number to give it back by."""
        held = self._paths[path][0](size)
        number = next(self._numbers)
        self._held[number] = path, held
        return number

    def give(self, number: int) -> None:
        path, held = self._held[number]
        self._paths[path][1](held)
        del self._held[number]

    def trim(self) -> None:
        """Wait for the card; let pools and graphs keep nothing."""
        client.synchronize()
        client.pool_trim(client.pool_default(self._device))
        client.pool_trim(self._pool)
        call("cuDeviceGraphMemTrim", self._device)

    def _create(self, size: int) -> int:
        return client.create(size, client.DEVICE, self._device)

    def _take_mapped(self, size: int) -> tuple[int, int]:
        """As allocators do: the handle goes as soon as the memory is mapped."""
        handle = self._create(size)
        try:
            return client.mapped(handle, size), size
        finally:
            client.release(handle)

    def _give_mapped(self, held: tuple[int, int]) -> None:
        client.unmap(*held)
        call("cuMemAddressFree", c_uint64(held[0]), c_size_t(held[1]))

    def _take_graph(self, size: int) -> tuple[c_void_p, int]:
        """What a graph allocates and does not free itself is the program's, as any other memory."""
        graph, pointer = client.graph_that_keeps(size, self._device)
        executable = client.instance(graph)
        call("cuGraphDestroy", graph)
        try:
            client.launch_graph(executable)
        except client.Refused:
            call("cuGraphExecDestroy", executable)
            raise
        return executable, pointer

    def _give_graph(self, held: tuple[c_void_p, int]) -> None:
        client.free_async(held[1])
        client.synchronize()
        call("cuGraphExecDestroy", held[0])

    def _take_limit(self, size: int) -> None:
        """There is one heap: the last one to raise it is the only one."""
        if client.limit(client.HEAP) != self._heap:
            raise client.Refused("limit", NOT_PERMITTED)
        client.set_limit(client.HEAP, self._heap + size)


def _shape(size: int) -> Any:
    return byref(client.Array3D2(4096, -(-size // _ROW), 0, client.FLOAT, 4, 0))
