# SPDX-License-Identifier: Apache-2.0
"""Memory of other interfaces is charged at the size that it is imported at."""

from __future__ import annotations

from gpushare import abi

from .conftest import ProgramContainer
from .rank import Ranks
from .tenant import MIB


def test_an_import_is_charged_to_the_quota(group: Ranks) -> None:
    (rank, *_) = group
    assert rank.ask("import_external(102 * MIB)") == {"refused": 2}
    rank.ask("import_external(60 * MIB)", "memory_of_others")
    assert group.both(rank) == (60, 60)
    assert group.container.tenant.kind(abi.KIND_EXTERNAL) == 60 * MIB
    assert rank.ask("result_of(alloc, 42 * MIB)") == 2
    rank.ask("destroy_external(memory_of_others)")
    assert group.both(rank) == (0, 0)


def test_buffers_in_a_destroyed_import_keep_its_charge(group: Ranks) -> None:
    (rank, *_) = group
    rank.ask("import_external(60 * MIB)", "imported")
    rank.ask("[buffer_in(imported, 20 * MIB, n * 20 * MIB) for n in range(2)]", "parts")
    assert group.both(rank) == (60, 60)
    rank.ask("free(parts[0])")
    assert group.both(rank) == (60, 60)
    rank.ask("destroy_external(imported)")
    assert group.both(rank) == (60, 60)
    rank.ask("free(parts[1])")
    assert group.both(rank) == (0, 0)


def test_an_import_ends_with_its_context(group: Ranks) -> None:
    (rank, *_) = group
    current = "[c := c_void_p(), call('cuCtxGetCurrent', byref(c)), c.value][2]"
    rank.ask(current, "first")
    rank.ask("[context() and 0]")
    rank.ask("buffer_in(import_external(60 * MIB), 20 * MIB)", "part")
    rank.ask(f"call('cuCtxDestroy_v2', c_void_p({current}))")
    rank.ask("call('cuCtxSetCurrent', c_void_p(first))")
    assert group.both(rank) == (0, 0)
    rank.ask("import_external(40 * MIB)", "imported")
    rank.ask("result_of(free, part)")
    assert group.both(rank) == (40, 40)


def test_an_import_that_fails_leaves_no_trace(simulated: ProgramContainer) -> None:
    said = simulated.says(
        "start()",
        "what = External(77, 0, 0, 10 * MIB)",
        "refused = result_of(call, 'cuImportExternalMemory', byref(c_void_p()), byref(what))",
        "nothing = result_of(call, 'cuImportExternalMemory', byref(c_void_p()), None)",
        "memory_of_others = import_external(10 * MIB)",
        "unknown = result_of(destroy_external, 0)",
        "say(refused != 0, nothing, unknown != 0, memory()[0] // MIB)",
    )
    assert said == [True, 1, True, 90]


def test_an_array_in_a_destroyed_import_keeps_its_charge(fake: ProgramContainer) -> None:
    said = fake.says(
        "start()",
        "imported, array = import_external(60 * MIB), c_void_p()",
        "where = (byref(array), c_void_p(imported), None)",
        "call('cuExternalMemoryGetMappedMipmappedArray', *where)",
        "destroy_external(imported)",
        "before = memory()[0] // MIB",
        "call('cuMipmappedArrayDestroy', array)",
        "say(before, memory()[0] // MIB)",
    )
    assert said == [40, 100]


def test_a_destruction_that_fails_keeps_the_charge(fake: ProgramContainer) -> None:
    said = fake.says(
        "start()",
        "imported = import_external(60 * MIB)",
        "os.environ['FAKE_CUDA_FAIL'] = '1'",
        "failed = result_of(destroy_external, imported)",
        "before = memory()[0] // MIB",
        "del os.environ['FAKE_CUDA_FAIL']",
        "destroy_external(imported)",
        "say(failed, before, memory()[0] // MIB)",
    )
    assert said == [719, 40, 100]
