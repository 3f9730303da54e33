# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""Memory of other interfaces is charged until nothing in its import is left."""

from __future__ import annotations

from .client import *
from .inside import inside


@inside()
def test_buffers_in_a_destroyed_import_keep_its_charge() -> None:
    start()
    before, imported = taken(), import_external(60 * MIB)
    parts = [buffer_in(imported, 20 * MIB, n * 20 * MIB) for n in range(2)]
    free(parts[0])
    destroy_external(imported)
    assert charged() == taken() - before == 60 * MIB
    free(parts[1])
    assert charged() == taken() - before == 0


@inside()
def test_an_import_that_fails_leaves_no_trace() -> None:
    start()
    assert result_of(made, "cuImportExternalMemory", byref(External(77, 0, 0, 10 * MIB))) != 0
    assert result_of(made, "cuImportExternalMemory", None) == 1
    import_external(10 * MIB)
    assert result_of(destroy_external, 0) != 0
    assert charged() == 10 * MIB


@inside("fake")
def test_an_array_in_a_destroyed_import_keeps_its_charge() -> None:
    start()
    imported = import_external(60 * MIB)
    where = c_void_p(imported), None
    level = made("cuExternalMemoryGetMappedMipmappedArray", *where)
    os.environ["FAKE_CUDA_FAIL"] = "1"
    assert result_of(destroy_external, imported) == LAUNCH_FAILED
    del os.environ["FAKE_CUDA_FAIL"]
    destroy_external(imported)
    assert charged() == 60 * MIB
    destroy_mipmap(level)
    assert charged() == 0
