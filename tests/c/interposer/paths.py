# SPDX-License-Identifier: Apache-2.0
"""Every function that is charged (libhook/table/coverage.txt): a call of it, and its undoing.

Each takes STEP bytes, exactly: what is charged is what is asked for.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gpushare import abi

from . import client
from .client import MIB, NO_OPTIONS, call, free, image, image_file, made

STEP: Final = 64 * MIB
#: What a green context is charged beside the primary context.
GREEN: Final = 4 * MIB
#: One element of 16 bytes, 4096 a row.
SHAPE: Final = {"w": 4096, "h": STEP // (4096 * 16), "format": client.FLOAT, "channels": 4}
NOT_SUPPORTED: Final = 801
#: What a path is beside being charged: the simulated driver can be told to fail it; the library
#: retries it on a full card; the card has less free at once.
FAILS, RETRIES, REACHES = 1, 2, 4
ALL: Final = FAILS | RETRIES | REACHES


@dataclass(frozen=True)
class Path:
    """How a function takes STEP bytes, once more with each call; `kind` is how they are noted."""

    kind: int
    take: Callable[[], Any]
    give: Callable[[Any], object]
    traits: int = ALL
    card: int = 0
    driver: str = "simulated"
    price: int = STEP  #: of a context, where the path makes one

    @property
    def ends_with_context(self) -> bool:
        """Whether the memory ends with the context where it was taken."""
        apart = abi.KIND_CONTEXT, abi.KIND_PHYSICAL, abi.KIND_POOL
        return self.driver == "simulated" and self.card == 0 and self.kind not in apart


def _give_async(pointer: int) -> None:
    client.free_async(pointer)
    client.synchronize()


def _pooled(suffix: str) -> tuple[c_void_p, int]:
    pool = client.pool_create()
    try:
        return pool, client.pool_alloc(pool, STEP, suffix)
    except client.Refused:
        call("cuMemPoolDestroy", pool)
        raise


def _give_pool(held: tuple[c_void_p, int]) -> None:
    _give_async(held[1])
    call("cuMemPoolDestroy", held[0])


def _grow_heap(change: int) -> None:
    client.set_limit(client.HEAP, client.limit(client.HEAP) + change)


@contextmanager
def _nowhere() -> Iterator[None]:
    """Without a context, where a library is charged nowhere."""
    before = client.current()
    while client.current().value:
        call("cuCtxSetCurrent", None)
    yield
    call("cuCtxSetCurrent", before)


def _used(use: Callable[[c_void_p], object]) -> c_void_p:
    """A library that was loaded where no context was, and is used where one is."""
    with _nowhere():
        library = client.library(image(STEP, more=client.KERNEL))
    try:
        use(library)
    except client.Refused as refused:
        if refused.args[1] != NOT_SUPPORTED:  # the simulator has no managed variables of libraries
            client.unload_library(library)
            raise
    return library


def _function_of(library: c_void_p) -> None:
    with _nowhere():
        kernel = made("cuLibraryGetKernel", library, b"empty")
    made("cuKernelGetFunction", kernel)


def _started(start: str) -> c_void_p:
    """A graph that allocates and frees, launched or uploaded."""
    if "Instantiate" in start:
        return client.instance(client.graph_of(STEP), start, client.UPLOAD)
    graph = client.instance(client.graph_of(STEP))
    try:
        call(start, graph, None)
    except client.Refused:
        call("cuGraphExecDestroy", graph)
        raise
    return graph


def _give_graph(graph: c_void_p) -> None:
    client.synchronize()
    call("cuGraphExecDestroy", graph)
    client.trim_graphs()


def _first_form(name: str, *words: object) -> int:
    """A buffer of the interface with addresses of 32 bits."""
    pointer = c_uint()
    call(name, byref(pointer), *words)
    return pointer.value


#: CUmemLocation, as it is passed by value.
CARD_1: Final = c_uint64(client.DEVICE | 1 << 32)
ADVISE_PREFERRED: Final = 3
SENDS: Final = {
    "cuMemPrefetchAsync": (1, None),
    "cuMemPrefetchAsync_ptsz": (1, None),
    "cuMemPrefetchAsync_v2": (CARD_1, 0, None),
    "cuMemPrefetchAsync_v2_ptsz": (CARD_1, 0, None),
    "cuMemAdvise": (ADVISE_PREFERRED, 1),
    "cuMemAdvise_v2": (ADVISE_PREFERRED, CARD_1),
}
FORMS: Final = ("", "_ptsz")
BATCHES: Final = tuple(
    f"cuMem{what}BatchAsync{form}" for what in ("Prefetch", "DiscardAndPrefetch") for form in FORMS
)


def send(name: str, pointer: int, size: int) -> None:
    """Send managed memory to card 1, or let that be where it is preferred."""
    call(name, c_uint64(pointer), c_size_t(size), *SENDS[name])


def send_batch(name: str, pointers: list[int], size: int, starts: list[int]) -> None:
    """Send buffers of `size` to cards 0, 1, 0, ...: from starts[n] on to the next."""
    buffers, places = len(pointers), len(starts)
    what = (c_uint64 * buffers)(*pointers), (c_size_t * buffers)(*[size] * buffers)
    where = (c_uint64 * places)(*[client.DEVICE | n % 2 << 32 for n in range(places)])
    count = c_size_t(places)
    call(
        name,
        *what,
        c_size_t(buffers),
        where,
        (c_size_t * places)(*starts),
        count,
        c_uint64(0),
        None,
    )


def _sent(name: str) -> int:
    failing = os.environ.pop("FAKE_CUDA_FAIL", None)  # not yet
    pointer = client.alloc_managed(STEP)
    os.environ.update({"FAKE_CUDA_FAIL": failing} if failing else {})
    try:
        if name in SENDS:
            send(name, pointer, STEP)
        else:
            send_batch(name, [pointer], STEP, [0, 0])
    except client.Refused:
        free(pointer)
        raise
    return pointer


def _load(name: str, *words: object) -> c_void_p:
    return made(name, image(STEP), *words)


def _load_file(name: str, *words: object) -> c_void_p:
    return made(name, image_file(image(STEP)), *words)


ARRAYS: Final[dict[str, ctypes.Structure]] = {
    "cuArrayCreate": client.Array1(**SHAPE),
    "cuArrayCreate_v2": client.Array2(**SHAPE),
    "cuArray3DCreate": client.Array3D1(**SHAPE),
    "cuArray3DCreate_v2": client.Array3D2(**SHAPE),
}
#: Behind the image, or its file.
LOADS: Final[dict[str, tuple[object, ...]]] = {
    "cuModuleLoad": (),
    "cuModuleLoadData": (),
    "cuModuleLoadDataEx": (0, None, None),
    "cuModuleLoadFatBinary": (),
    "cuLibraryLoadData": NO_OPTIONS,
    "cuLibraryLoadFromFile": NO_OPTIONS,
}
USES: Final[dict[str, Callable[[c_void_p], object]]] = {
    "cuLibraryGetModule": partial(made, "cuLibraryGetModule"),
    "cuLibraryGetKernel": lambda library: made("cuLibraryGetKernel", library, b"empty"),
    "cuLibraryGetGlobal": client.variable_of,
    "cuLibraryGetManaged": partial(client.variable_of, by="cuLibraryGetManaged"),
    "cuKernelGetFunction": _function_of,
}
CONTEXTS: Final[dict[str, tuple[object, ...]]] = {
    "cuCtxCreate": (0, 0),
    "cuCtxCreate_v2": (0, 0),
    "cuCtxCreate_v3": (None, 0, 0, 0),
    "cuCtxCreate_v4": (None, 0, 0),
}

# fmt: off
PATHS: Final[dict[str, Path]] = {
    "cuMemAlloc_v2": Path(abi.KIND_BUFFER, lambda: client.alloc(STEP), free),
    "cuMemAllocPitch_v2": Path(abi.KIND_BUFFER, lambda: client.alloc_pitch(STEP), free),
    "cuMemAlloc": Path(
        abi.KIND_BUFFER, lambda: _first_form("cuMemAlloc", STEP),
        lambda pointer: call("cuMemFree", c_uint(pointer)), driver="fake"),
    "cuMemAllocPitch": Path(
        abi.KIND_BUFFER,
        lambda: _first_form("cuMemAllocPitch", byref(c_uint()), MIB, STEP // MIB, 4),
        lambda pointer: call("cuMemFree", c_uint(pointer)), driver="fake"),
    "cuMemAllocManaged": Path(
        abi.KIND_MANAGED, lambda: client.alloc_managed(STEP), free, FAILS | RETRIES),
    "cuMemCreate": Path(abi.KIND_PHYSICAL, lambda: client.create(STEP), client.release),
    "cuImportExternalMemory": Path(
        abi.KIND_EXTERNAL, lambda: client.import_external(STEP), client.destroy_external,
        FAILS | REACHES),
    "cuCtxSetLimit": Path(
        abi.KIND_CONTEXT_LIMIT, lambda: _grow_heap(STEP), lambda _: _grow_heap(-STEP), REACHES),
    "cuMipmappedArrayCreate": Path(
        abi.KIND_ARRAY, lambda: made("cuMipmappedArrayCreate", byref(client.Array3D2(**SHAPE)), 1),
        client.destroy_mipmap, REACHES),
    # The page says that a context takes STEP, which is not what it takes of the simulated card.
    "cuDevicePrimaryCtxRetain": Path(
        abi.KIND_CONTEXT, lambda: made("cuDevicePrimaryCtxRetain", 0),
        lambda _: call("cuDevicePrimaryCtxRelease_v2", 0), FAILS | RETRIES),
    "cuGreenCtxCreate": Path(
        abi.KIND_CONTEXT, lambda: made("cuGreenCtxCreate", None, 0, 1),
        lambda context: call("cuGreenCtxDestroy", context), driver="fake", price=STEP - GREEN),
} | {
    f"cuMemAllocAsync{form}": Path(
        abi.KIND_POOL, partial(client.alloc_async, STEP, form), _give_async)
    for form in FORMS
} | {
    f"cuMemAllocFromPoolAsync{form}": Path(abi.KIND_POOL, partial(_pooled, form), _give_pool)
    for form in FORMS
} | {
    name: Path(abi.KIND_ARRAY, partial(made, name, byref(shape)), client.destroy)
    for name, shape in ARRAYS.items()
} | {
    name: Path(
        abi.KIND_MODULE, partial(_load if "Data" in name or "Fat" in name else _load_file, name,
        *more), client.unload_library if "Library" in name else client.unload,
        0 if "Library" in name else ALL)
    for name, more in LOADS.items()
} | {
    name: Path(abi.KIND_MODULE, partial(_used, use), client.unload_library, 0)
    for name, use in USES.items()
} | {
    f"{name}{form}": Path(
        abi.KIND_GRAPH, partial(_started, f"{name}{form}"), _give_graph, REACHES)
    for name in ("cuGraphLaunch", "cuGraphUpload", "cuGraphInstantiateWithParams")
    for form in FORMS
} | {
    name: Path(
        abi.KIND_CONTEXT, partial(made, name, *words),
        lambda context: call("cuCtxDestroy_v2", context), FAILS | RETRIES)
    for name, words in CONTEXTS.items()
} | {
    name: Path(abi.KIND_MANAGED, partial(_sent, name), free, 0, 1) for name in SENDS
} | {
    name: Path(abi.KIND_MANAGED, partial(_sent, name), free, card=1, driver="fake")
    for name in BATCHES
}
# fmt: on
