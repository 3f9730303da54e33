# SPDX-License-Identifier: Apache-2.0
"""Memory pools are charged what the driver holds for them, and never more than the quota.

The simulated driver's pools grow by 32 MiB at a time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpushare import abi, simulator

from .conftest import ProgramContainer, SimulatedContainer, program
from .tenant import MIB

CHUNK = 32 * MIB

#: A program begins with a context; of what the card holds from then on, all is to be charged.
START = (
    "start()",
    "before = taken()",
    "CHUNK = 32 * MIB",
    "sync = lambda: call('cuCtxSynchronize')",
)
#: And ends with what is charged, in MiB, and the truth.
END = "say(charged() // MIB, (taken() - before) // MIB)"


def beside_the_driver(container: ProgramContainer) -> ProgramContainer:
    container.env["BEHIND"] = str(container.libraries.parent / "driver" / "libcuda.so.1")
    return container


@pytest.fixture
def pooled(simulated: ProgramContainer) -> ProgramContainer:
    """A container with 100 MiB of a card, whose programs can ask the driver for its own figures."""
    return beside_the_driver(simulated)


def ends_at(container: ProgramContainer, *lines: str) -> list[object]:
    """Run a program that says something; return that, what is charged at its end, in chunks."""
    *said, (charged, truth) = container.python(*START, *lines, END)
    assert charged == truth
    assert isinstance(charged, int)
    return [*(word for line in said for word in line), charged * MIB / CHUNK]


@pytest.mark.parametrize(
    "allocate", ["alloc_async", "alloc_async_ptsz", "alloc_from_pool", "alloc_from_pool_ptsz"]
)
class TestGrowth:
    def test_a_pool_is_charged_as_it_grows(self, allocate: str, pooled: ProgramContainer) -> None:
        said = ends_at(pooled, f"{allocate}(1)", f"{allocate}(CHUNK - 512)", f"{allocate}(512)")
        assert said == [2]

    def test_pool_memory_beyond_the_quota_is_released(
        self, allocate: str, pooled: ProgramContainer
    ) -> None:
        said = ends_at(
            pooled,
            f"[{allocate}(CHUNK) for _ in range(3)]",
            f"say(result_of({allocate}, 1))",  # 4 MiB are left, the pool takes 32
        )
        assert said == [2, 3]

    def test_the_last_byte_is_allocated_and_none_after_it(
        self, allocate: str, pooled: ProgramContainer
    ) -> None:
        pooled.tenant.set_memory(3 * CHUNK)
        said = ends_at(
            pooled,
            f"{allocate}(3 * CHUNK - 512)",
            f"say(result_of({allocate}, 512), memory()[0], result_of({allocate}, 1))",
        )
        assert said == [0, 0, 2, 3]

    def test_nothing_above_the_quota_is_requested_from_the_driver(
        self, allocate: str, pooled: ProgramContainer
    ) -> None:
        said = ends_at(
            pooled,
            f"say([result_of({allocate}, size) for size in (101 * MIB, 1 << 50, KEEP_ALL)])",
        )
        assert said == [[2, 2, 2], 0]

    def test_a_failed_driver_call_leaves_no_trace(
        self, allocate: str, pooled: ProgramContainer
    ) -> None:
        code = (
            *START,
            f"kept = {allocate}(CHUNK)",
            "say(0)",
            "input()",
            f"say(result_of({allocate}, CHUNK), result_of({allocate}, CHUNK))",
            END,
        )
        with pooled.start(sys.executable, "-c", program(*code)) as process:
            assert process.stdout
            assert process.stdout.readline() == "[0]\n"
            simulator.fail(device_of(pooled), allocations=1, error=999)
            said, _ = process.communicate("\n")
        assert said == "[999, 0]\n[64, 64]\n"


def device_of(container: ProgramContainer) -> Path:
    return Path(container.env["GPUSHARE_SIM_DEVICE"])


@pytest.mark.parametrize("give", ["free", "free_async", "free_async_ptsz"])
@pytest.mark.parametrize(
    "wait",
    [
        "call('cuStreamSynchronize', None)",
        "call('cuStreamSynchronize_ptsz', None)",
        "call('cuEventSynchronize', event)",
        "call('cuCtxSynchronize')",
        "call('cuCtxSynchronize_v2', handle)",
    ],
)
def test_freed_memory_is_released_where_the_program_waits(
    give: str, wait: str, pooled: ProgramContainer
) -> None:
    said = ends_at(
        pooled,
        "handle, event = c_void_p(), c_void_p()",
        "call('cuCtxGetCurrent', byref(handle))",
        "call('cuEventCreate', byref(event), 0)",
        "call('cuEventRecord', event, None)",
        "kept, freed = alloc_async(CHUNK), alloc_async(CHUNK)",
        f"{give}(freed)",
        "say(charged() // CHUNK)",
        wait,
    )
    assert said == [2, 1]


class TestThreshold:
    """What a pool keeps stays charged, costs no more when it is used again, and can be had."""

    def test_a_pool_that_keeps_all_is_charged_once(self, pooled: ProgramContainer) -> None:
        said = ends_at(
            pooled,
            "pool_threshold(pool_default(), KEEP_ALL)",
            "for _ in range(300):",
            "    pointers = [alloc_async(size * MIB) for size in (1, 7, 20)]",
            "    [free_async(pointer) for pointer in pointers]",
            "    sync()",
        )
        assert said == [1]

    def test_memory_that_a_pool_keeps_is_noted(self, pooled: ProgramContainer) -> None:
        pooled.python(
            *START,
            "pool_threshold(pool_default(), KEEP_ALL)",
            "pointer = alloc_async(CHUNK)",
            "alloc_async(20 * MIB)",
            "os._exit(0)",
        )
        assert pooled.tenant.kind(abi.KIND_POOL) == 2 * CHUNK == pooled.tenant.used()[0]
        assert pooled.tenant.pool_kept() == 12 * MIB

    def test_freed_memory_that_a_pool_keeps_is_noted_where_the_program_waits(
        self, pooled: ProgramContainer
    ) -> None:
        pooled.python(
            *START,
            "pool_threshold(pool_default(), KEEP_ALL)",
            "free_async(alloc_async(3 * CHUNK))",
            "sync()",
            "os._exit(0)",
        )
        assert pooled.tenant.pool_kept() == pooled.tenant.used()[0] == 3 * CHUNK

    def test_a_trim_gives_back_exactly(self, pooled: ProgramContainer) -> None:
        said = ends_at(
            pooled,
            "pool_threshold(pool_default(), KEEP_ALL)",
            "kept, *others = [alloc_async(CHUNK) for _ in range(3)]",
            "[free_async(pointer) for pointer in others]",
            "sync()",
            "full = charged() // CHUNK",
            "call('cuMemPoolTrimTo', pool_default(), c_size_t(2 * CHUNK))",
            "less = charged() // CHUNK",
            "call('cuMemPoolTrimTo', pool_default(), c_size_t(0))",
            "say(full, less)",
        )
        assert said == [3, 2, 1]

    def test_a_lower_threshold_lets_go_at_the_next_wait(self, pooled: ProgramContainer) -> None:
        said = ends_at(
            pooled,
            "pool_threshold(pool_default(), KEEP_ALL)",
            "free_async(alloc_async(3 * CHUNK))",
            "sync()",
            "pool_threshold(pool_default(), 0)",
            "full = charged() // CHUNK",
            "sync()",
            "say(full)",
        )
        assert said == [3, 0]

    @pytest.mark.parametrize("allocate", ["alloc", "alloc_managed", "create", "alloc_async"])
    def test_a_pool_is_trimmed_before_an_allocation_is_refused(
        self, allocate: str, pooled: ProgramContainer
    ) -> None:
        """As a card that is full has the driver do."""
        said = ends_at(
            pooled,
            "pool = pool_create()",
            "pool_threshold(pool, KEEP_ALL)",
            "free_async(pool_alloc(pool, 3 * CHUNK))",
            "sync()",
            f"handle = {allocate}(2 * CHUNK)",
            "say(charged() // CHUNK)",
            *(["free(handle)"] if allocate == "alloc_managed" else []),  # it is on no card yet
        )
        assert said == [2, 0 if allocate == "alloc_managed" else 2]

    def test_after_a_refusal_a_free_is_enough(self, pooled: ProgramContainer) -> None:
        """What frameworks do: free what they cache, try again, and wait for nothing."""
        said = ends_at(
            pooled,
            "pool_threshold(pool_default(), KEEP_ALL)",
            "pointers = [alloc_async(CHUNK) for _ in range(3)]",
            "first = result_of(alloc_async, CHUNK), result_of(alloc, CHUNK)",
            "free_async(pointers.pop())",
            "say(first, result_of(alloc, CHUNK))",
        )
        assert said == [[2, 2], 0, 3]

    def test_a_split_pool_cannot_exceed_the_quota(self, pooled: ProgramContainer) -> None:
        """By the books it fits into what is kept, but no piece is large enough."""
        said = ends_at(
            pooled,
            "pool_threshold(pool_default(), KEEP_ALL)",
            "pieces = [alloc_async(CHUNK // 2) for _ in range(4)]",
            "[free_async(piece) for piece in pieces[::2]]",
            "say([result_of(alloc_async, CHUNK) for _ in range(2)])",
        )
        assert said == [[0, 2], 3]


class TestPools:
    def test_a_destroyed_pool_is_charged_while_some_of_it_lives(
        self, pooled: ProgramContainer
    ) -> None:
        said = ends_at(
            pooled,
            "pool = pool_create()",
            "pool_threshold(pool, KEEP_ALL)",
            "kept, freed = pool_alloc(pool, CHUNK), pool_alloc(pool, CHUNK)",
            "free_async(freed)",
            "call('cuMemPoolDestroy', pool)",
            "living = charged() // CHUNK, (taken() - before) // CHUNK",
            "free_async(kept)",
            "sync()",
            "say(living)",
        )
        assert said == [[1, 1], 0]

    def test_an_empty_pool_is_destroyed_at_once(self, pooled: ProgramContainer) -> None:
        said = ends_at(
            pooled,
            "for _ in range(40):",
            "    pool = pool_create()",
            "    free_async(pool_alloc(pool, 2 * CHUNK))",
            "    call('cuMemPoolDestroy', pool)",
        )
        assert said == [0]

    def test_a_default_pool_cannot_be_destroyed_and_stays_known(
        self, pooled: ProgramContainer
    ) -> None:
        said = ends_at(
            pooled,
            "alloc_async(CHUNK)",
            "say(result_of(call, 'cuMemPoolDestroy', pool_default()))",
            "alloc_async(CHUNK)",
        )
        assert said == [1, 2]

    def test_memory_comes_from_the_current_pool(self, pooled: ProgramContainer) -> None:
        said = ends_at(
            pooled,
            "pool = pool_create()",
            "pool_threshold(pool, KEEP_ALL)",
            "call('cuDeviceSetMemPool', 0, pool)",
            "free_async(alloc_async(CHUNK))",
            "sync()",
            "kept = charged() // CHUNK",
            "call('cuMemPoolDestroy', pool)",
            "say(kept, charged())",
            "alloc_async(1)",
        )
        assert said == [1, 0, 1]

    def test_a_pool_of_a_largest_size_is_charged_no_more(self, pooled: ProgramContainer) -> None:
        said = pooled.says(
            *START,
            "pool = pool_create(max_size=40 * MIB)",
            "pool_alloc(pool, 36 * MIB)",
            "full = result_of(pool_alloc, pool, 6 * MIB)",
            "say(full, charged() // MIB, (taken() - before) // MIB)",
        )
        assert said == [2, 40, 40]

    @pytest.mark.parametrize(
        "pool",
        [
            "pool_create(location_type=2)",
            "pool_create(location_type=HOST_NUMA)",
            "pool_at(2)",
        ],
    )
    def test_a_pool_of_the_host_is_not_charged(self, pool: str, pooled: ProgramContainer) -> None:
        said = ends_at(
            pooled,
            "def pool_at(location_type):",
            "    pool, location = c_void_p(), (c_int * 2)(location_type, 0)",
            "    call('cuMemGetDefaultMemPool', byref(pool), location, 1)",
            "    return pool",
            f"pool = {pool}",
            "pointers = [pool_alloc(pool, 70 * MIB), pool_alloc(pool, 70 * MIB, '_ptsz')]",
            "free_async(pointers.pop())",
            "call('cuMemPoolTrimTo', pool, c_size_t(0))",
            "call('cuMemPoolTrimTo', pool_default(), c_size_t(0))",
        )
        assert said == [0]

    def test_a_pool_is_charged_on_its_own_card(
        self, simulated_container: SimulatedContainer
    ) -> None:
        container = simulated_container(2, [0, 1])
        container.python(
            "call('cuInit', 0)",
            "call('cuDevicePrimaryCtxRetain', byref(c_void_p()), 1)",
            "context(0)",  # is current, and so are its streams
            "pool_alloc(pool_default(1), 40 * MIB)",
            "pool_alloc(pool_create(device=1), 1)",
            "alloc_async(1)",
            "os._exit(0)",
        )
        assert container.tenant.used(0)[0] == 32 * MIB
        assert container.tenant.used(1)[0] == 96 * MIB

    def test_a_pool_on_a_card_that_was_not_allocated_is_refused(
        self, simulated_container: SimulatedContainer
    ) -> None:
        container = simulated_container(2, [0])
        said = container.says(
            "start()",
            "say(result_of(pool_create, 1), result_of(lambda: pool_alloc(pool_default(1), 1)))",
        )
        assert said == [46, 46]

    def test_the_pool_of_an_ended_context_is_released(self, pooled: ProgramContainer) -> None:
        """The simulated driver's pools end with the first context that used them."""
        said = ends_at(
            pooled,
            "beside, handle = c_void_p(), c_void_p()",
            "call('cuCtxGetCurrent', byref(beside))",
            "handle = context()",
            "alloc_async(CHUNK)",
            "call('cuCtxDestroy_v2', handle)",
            "call('cuCtxSetCurrent', beside)",
            "say(charged() // CHUNK)",
            "[alloc_async(CHUNK) for _ in range(2)]",
        )
        assert said == [0, 2]


class TestSharing:
    def test_memory_of_a_shared_pool_is_charged_where_it_was_made(
        self, pooled: ProgramContainer
    ) -> None:
        """And where it is still mapped, once its maker is gone."""
        said = pooled.python(
            "import select, socket",
            "ours, theirs = socket.socketpair()",
            "child = os.fork()",
            "start()",
            "exported, fd, pool = (ctypes.c_ubyte * 64)(), c_int(), c_void_p()",
            "if child == 0:",
            "    ours.close()",
            "    exported[:], (fd, *_), _, _ = socket.recv_fds(theirs, 64, 1)",
            "    pointer, none, file = c_uint64(), c_uint64(), c_void_p(fd)",
            "    call('cuMemPoolImportFromShareableHandle', byref(pool), file, 1, none)",
            "    call('cuMemPoolImportPointer', byref(pointer), pool, exported)",
            "    figures = [charged() // MIB, result_of(pool_alloc, pool, 1) != 0]",
            "    theirs.send(b'!')",
            "    select.select([os.pidfd_open(os.getppid())], [], [])",
            "    figures += [result_of(alloc, 81 * MIB), charged() // MIB]",
            "    free_async(pointer.value)",
            "    figures.append(charged() // MIB)",
            "    say(*figures)",
            "    os._exit(0)",
            "theirs.close()",
            "pool = pool_create(handle_types=1)",
            "pointer = pool_alloc(pool, 20 * MIB)",
            "call('cuMemPoolExportPointer', exported, c_uint64(pointer))",
            "call('cuMemPoolExportToShareableHandle', byref(fd), pool, 1, c_uint64())",
            "socket.send_fds(ours, [bytes(exported)], [fd.value])",
            "ours.recv(1)",
        )
        assert said == [[32, True, 2, 20, 0]]

    def test_an_exported_allocation_stays_exported_until_it_is_freed(
        self, pooled: ProgramContainer
    ) -> None:
        code = (
            "start()",
            "exported = (ctypes.c_ubyte * 64)()",
            "pool = pool_create(handle_types=1)",
            "pointers = [pool_alloc(pool, 20 * MIB), pool_alloc(pool, 4 * MIB)]",
            "for pointer in pointers * 2:",
            "    call('cuMemPoolExportPointer', exported, c_uint64(pointer))",
            "say(0)",
            "input()",
            "free_async(pointers[0])",
            "say(0)",
            "input()",
        )
        with pooled.start(sys.executable, "-c", program(*code)) as process:
            assert process.stdout
            assert process.stdin
            process.stdout.readline()
            assert pooled.tenant.shared() == (24 * MIB, 0)
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
            assert pooled.tenant.shared() == (4 * MIB, 0)
            process.communicate("\n")


def test_threads_that_allocate_from_one_pool_stay_within_the_quota(
    pooled: ProgramContainer,
) -> None:
    said = ends_at(
        pooled,
        "import random",
        "handle = c_void_p()",
        "call('cuCtxGetCurrent', byref(handle))",
        "refused = []",
        "def work(seed):",
        "    call('cuCtxSetCurrent', handle)",
        "    numbers, held = random.Random(seed), []",
        "    for _ in range(150):",
        "        pointer = c_uint64()",
        "        size = c_size_t(numbers.choice((1, 700, MIB, 9 * MIB, 33 * MIB)))",
        "        result = cu.cuMemAllocAsync_ptsz(byref(pointer), size, None)",
        "        held += [pointer.value] if result == 0 else []",
        "        refused.append(result)",
        "        if held and numbers.random() < 0.6:",
        "            free_async(held.pop(numbers.randrange(len(held))))",
        "        if numbers.random() < 0.2:",
        "            call('cuStreamSynchronize_ptsz', None)",
        "    [free(pointer) for pointer in held]",
        "workers = [threading.Thread(target=work, args=[seed]) for seed in range(6)]",
        "[worker.start() for worker in workers]",
        "[worker.join() for worker in workers]",
        "sync()",
        "say(sorted(set(refused)))",
    )
    assert said == [[0, 2], 0]


def test_a_forked_child_has_none_of_its_parent_s_pools(fake: ProgramContainer) -> None:
    said = fake.python(
        "start()",
        "pointer = alloc_async(40 * MIB)",
        "child = os.fork()",
        "if child == 0:",
        "    free_async(pointer)",
        "    cu.cuCtxSynchronize()",
        "    say('child', charged() // MIB, result_of(alloc_async, 61 * MIB))",
        "    os._exit(0)",
        "os.waitpid(child, 0)",
        "say('parent', charged() // MIB)",
    )
    assert said == [["child", 40, 2], ["parent", 40]]
