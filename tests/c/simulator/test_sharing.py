# SPDX-License-Identifier: Apache-2.0
"""Physical memory and allocations that several processes hold are counted once, and to the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpushare import simulator

from .conftest import ClientProcess, SimulatorMachine

MIB = 1 << 20
GIB = 1 << 30
CONTEXT = simulator.load_profile("h200")["context_bytes"]
DEVICE, HOST, HOST_NUMA = 1, 2, 3


@contextmanager
def entered(machine: SimulatorMachine) -> Iterator[tuple[ClientProcess, int]]:
    """Start a client that has a context on card 0; give it and its pid."""
    with machine.started("sharing.py") as client:
        assert client.ask("init") == 0
        assert client.ask("context") == 0
        yield client, int(client.ask("pid"))


def done(answer: Any) -> Any:
    """Return what came beside the result of a call that succeeded."""
    assert answer[0] == 0, answer
    return answer[1]


def held(machine: SimulatorMachine) -> dict[int, int]:
    """Return what each process holds beyond its context; it must add up to the card's sum."""
    (card,) = machine.ask("nvml.py")["cards"]
    processes = {int(pid): used - CONTEXT for pid, used in card["processes"].items()}
    assert card["used_by_programs"] == sum(processes.values()) + CONTEXT * len(processes)
    return processes


def test_exported_memory_is_counted_once_at_its_maker(machine: SimulatorMachine) -> None:
    with entered(machine) as (maker, one), entered(machine) as (holder, other):
        handle = done(maker.ask(f"create {4 * GIB}"))
        assert held(machine) == {one: 4 * GIB, other: 0}
        descriptor = done(maker.ask(f"export {handle}"))
        assert held(machine) == {one: 4 * GIB, other: 0}
        imported = done(holder.ask(f"import {one} {descriptor}"))
        pointer = holder.ask(f"map {imported} {4 * GIB}")
        assert held(machine) == {one: 4 * GIB, other: 0}
        mine = maker.ask(f"map {handle} {4 * GIB}")
        assert holder.ask(f"write {pointer + 3 * GIB} 77") == 0
        assert maker.ask(f"read {mine + 3 * GIB}") == 77
        assert holder.ask(f"release {imported}") == 0
        assert holder.ask(f"unmap {pointer} {4 * GIB}") == 0
        assert held(machine) == {one: 4 * GIB, other: 0}
        assert maker.ask(f"unmap {mine} {4 * GIB}") == 0
        assert maker.ask(f"release {handle}") == 0
        assert held(machine) == {one: 0, other: 0}


def test_memory_that_outlives_its_maker_is_charged_to_its_remaining_user(
    machine: SimulatorMachine,
) -> None:
    with (
        entered(machine) as (maker, one),
        entered(machine) as (second, two),
        entered(machine) as (third, three),
    ):
        handle = done(maker.ask(f"create {4 * GIB}"))
        descriptor = done(maker.ask(f"export {handle}"))
        done(second.ask(f"import {one} {descriptor}"))
        last = done(third.ask(f"import {one} {descriptor}"))
        maker.kill()
        after = held(machine)
        assert sorted(after.values()) == [0, 4 * GIB]
        assert after.keys() == {two, three}
        second.kill()
        assert held(machine) == {three: 4 * GIB}
        assert third.ask(f"release {last}") == 0
        assert held(machine) == {three: 0}


def test_a_maker_that_drops_its_last_reference_no_longer_has_it_counted(
    machine: SimulatorMachine,
) -> None:
    with entered(machine) as (maker, one), entered(machine) as (holder, other):
        handle = done(maker.ask(f"create {4 * GIB}"))
        descriptor = done(maker.ask(f"export {handle}"))
        mine = maker.ask(f"map {handle} {4 * GIB}")
        imported = done(holder.ask(f"import {one} {descriptor}"))
        assert maker.ask(f"release {handle}") == 0
        assert held(machine) == {one: 4 * GIB, other: 0}  # its mapping holds it
        assert maker.ask(f"unmap {mine} {4 * GIB}") == 0
        assert held(machine) == {one: 0, other: 4 * GIB}
        again = done(maker.ask(f"import {one} {descriptor}"))
        assert holder.ask(f"release {imported}") == 0
        assert held(machine) == {one: 4 * GIB, other: 0}
        assert maker.ask(f"release {again}") == 0
        assert held(machine) == {one: 0, other: 0}


def test_memory_that_is_only_a_descriptor_is_counted_again_where_it_is_imported(
    machine: SimulatorMachine,
) -> None:
    with entered(machine) as (maker, one), entered(machine) as (holder, other):
        handle = done(maker.ask(f"create {4 * GIB}"))
        descriptor = done(maker.ask(f"export {handle}"))
        assert maker.ask(f"release {handle}") == 0
        free = holder.ask("info")[0]
        filler = done(holder.ask(f"alloc {(free - GIB) // (2 * MIB) * 2 * MIB}"))
        assert holder.ask(f"import {one} {descriptor}")[0] == 2
        assert holder.ask(f"free {filler}") == 0
        done(holder.ask(f"import {one} {descriptor}"))
        assert held(machine) == {one: 0, other: 4 * GIB}


def test_importing_twice_holds_twice_and_counts_once(machine: SimulatorMachine) -> None:
    with entered(machine) as (maker, one), entered(machine) as (holder, other):
        handle = done(maker.ask(f"create {4 * GIB}"))
        descriptor = done(maker.ask(f"export {handle}"))
        first = done(holder.ask(f"import {one} {descriptor}"))
        second = done(holder.ask(f"import {one} {descriptor}"))
        maker.kill()
        assert holder.ask(f"release {first}") == 0
        assert held(machine) == {other: 4 * GIB}
        assert holder.ask(f"release {second}") == 0
        assert held(machine) == {other: 0}


def test_a_handle_taken_back_from_an_address_holds_the_memory(machine: SimulatorMachine) -> None:
    with entered(machine) as (client, pid):
        handle = done(client.ask(f"create {4 * GIB}"))
        pointer = client.ask(f"map {handle} {4 * GIB}")
        assert client.ask(f"release {handle}") == 0
        again = done(client.ask(f"handle {pointer + GIB}"))
        assert client.ask(f"unmap {pointer} {4 * GIB}") == 0
        assert held(machine) == {pid: 4 * GIB}
        assert client.ask(f"release {again}") == 0
        assert held(machine) == {pid: 0}
        assert client.ask(f"handle {pointer}")[0] != 0


@pytest.mark.parametrize("location", [HOST, HOST_NUMA])
def test_physical_memory_of_the_host_takes_nothing_of_a_card(
    machine: SimulatorMachine, location: int
) -> None:
    with entered(machine) as (maker, one), entered(machine) as (holder, other):
        handle = done(maker.ask(f"create {4 * GIB} {location}"))
        descriptor = done(maker.ask(f"export {handle}"))
        imported = done(holder.ask(f"import {one} {descriptor}"))
        assert held(machine) == {one: 0, other: 0}
        theirs = holder.ask(f"map {imported} {4 * GIB}")
        mine = maker.ask(f"map {handle} {4 * GIB}")
        assert maker.ask(f"write {mine} 5") == 0
        assert holder.ask(f"read {theirs}") == 5


def test_a_process_killed_while_it_shares_leaves_nothing(machine: SimulatorMachine) -> None:
    with entered(machine) as (maker, one):
        handle = done(maker.ask(f"create {4 * GIB}"))
        descriptor = done(maker.ask(f"export {handle}"))
        for pause in range(12):
            with entered(machine) as (churning, _):
                assert churning.ask(f"churn_shared {one} {descriptor}") == "going"
                for _ in range(pause):
                    machine.simulator.device.stat()  # another moment each time
                (card,) = machine.ask("nvml.py")["cards"]
                assert card["processes"][str(one)] == CONTEXT + 4 * GIB
                churning.kill()
            assert held(machine) == {one: 4 * GIB}
        assert maker.ask(f"release {handle}") == 0
        assert held(machine) == {one: 0}


def test_an_ipc_handle_shares_the_contents_and_counts_at_the_exporter(
    machine: SimulatorMachine,
) -> None:
    with entered(machine) as (exporter, one), entered(machine) as (opener, other):
        pointer = done(exporter.ask(f"alloc {4 * GIB}"))
        assert exporter.ask(f"write {pointer + GIB} 3") == 0
        handle = done(exporter.ask(f"ipc_get {pointer}"))
        opened = done(opener.ask(f"ipc_open {handle}"))
        assert opener.ask(f"read {opened + GIB}") == 3
        assert opener.ask(f"write {opened + 2 * GIB} 4") == 0
        assert exporter.ask(f"read {pointer + 2 * GIB}") == 4
        assert opener.ask(f"range {opened + GIB}") == [0, opened, 4 * GIB]
        assert held(machine) == {one: 4 * GIB, other: 0}
        assert opener.ask(f"free {opened}") != 0
        assert opener.ask(f"ipc_close {opened}") == 0
        assert opener.ask(f"range {opened}")[0] != 0
        assert exporter.ask(f"free {pointer}") == 0
        assert held(machine) == {one: 0, other: 0}


def test_an_ipc_handle_opened_twice_is_one_address_until_closed_twice(
    machine: SimulatorMachine,
) -> None:
    with entered(machine) as (exporter, _), entered(machine) as (opener, _):
        pointer = done(exporter.ask(f"alloc {GIB}"))
        handle = done(exporter.ask(f"ipc_get {pointer}"))
        opened = done(opener.ask(f"ipc_open {handle}"))
        assert done(opener.ask(f"ipc_open {handle}")) == opened
        assert opener.ask(f"ipc_close {opened}") == 0
        assert opener.ask(f"range {opened}")[0] == 0
        assert opener.ask(f"ipc_close {opened}") == 0
        assert opener.ask(f"ipc_close {opened}") != 0


def test_small_allocations_of_a_block_are_opened_each_by_its_handle(
    machine: SimulatorMachine,
) -> None:
    with entered(machine) as (exporter, one), entered(machine) as (opener, other):
        pointers = [done(exporter.ask("alloc 4096")) for _ in range(2)]
        for value, pointer in enumerate(pointers, 7):
            assert exporter.ask(f"write {pointer} {value}") == 0
        handles = [done(exporter.ask(f"ipc_get {pointer}")) for pointer in pointers]
        opened = [done(opener.ask(f"ipc_open {handle}")) for handle in handles]
        assert [opener.ask(f"read {pointer}") for pointer in opened] == [7, 8]
        assert opened[1] - opened[0] == pointers[1] - pointers[0]
        assert held(machine) == {one: 2 * MIB, other: 0}


def test_a_process_cannot_open_its_own_handle_nor_one_of_the_dead(
    machine: SimulatorMachine,
) -> None:
    with entered(machine) as (exporter, _), entered(machine) as (opener, _):
        pointer = done(exporter.ask(f"alloc {GIB}"))
        handle = done(exporter.ask(f"ipc_get {pointer}"))
        assert exporter.ask(f"ipc_open {handle}")[0] == 201
        assert opener.ask(f"ipc_open {handle} 0")[0] == 1
        exporter.kill()
        assert opener.ask(f"ipc_open {handle}")[0] == 400


def test_imported_memory_outlives_its_exporter_and_is_charged_to_the_importer(
    machine: SimulatorMachine,
) -> None:
    with entered(machine) as (exporter, _), entered(machine) as (opener, other):
        pointer = done(exporter.ask(f"alloc {GIB}"))
        assert exporter.ask(f"write {pointer} 9") == 0
        opened = done(opener.ask(f"ipc_open {done(exporter.ask(f'ipc_get {pointer}'))}"))
        exporter.kill()
        assert held(machine) == {other: GIB}
        assert opener.ask(f"read {opened}") == 9
        assert opener.ask(f"ipc_close {opened}") == 0
        assert held(machine) == {other: 0}


def test_memory_allocated_after_an_exported_one_is_no_others(machine: SimulatorMachine) -> None:
    with entered(machine) as (exporter, _), entered(machine) as (opener, _):
        pointer = done(exporter.ask(f"alloc {GIB}"))
        opened = done(opener.ask(f"ipc_open {done(exporter.ask(f'ipc_get {pointer}'))}"))
        assert exporter.ask(f"free {pointer}") == 0
        assert done(exporter.ask(f"alloc {GIB}")) == pointer
        assert exporter.ask(f"write {pointer} 1") == 0
        assert opener.ask(f"read {opened}") == 0


def test_imported_memory_of_another_api_is_on_the_importers_account(
    machine: SimulatorMachine,
) -> None:
    with entered(machine) as (client, pid):
        handle = done(client.ask(f"external {3 * GIB}"))
        assert held(machine) == {pid: 3 * GIB}
        one = done(client.ask(f"external_map {handle} 0 {GIB}"))
        other = done(client.ask(f"external_map {handle} {GIB // 2} {GIB}"))
        assert client.ask(f"write {one + GIB // 2} 6") == 0
        assert client.ask(f"read {other}") == 6
        assert client.ask(f"external_map {handle} {GIB} {3 * GIB}")[0] == 1
        assert held(machine) == {pid: 3 * GIB}
        assert client.ask(f"free {one}") == 0
        assert client.ask(f"external_end {handle}") == 0
        assert held(machine) == {pid: 3 * GIB}  # a buffer is still mapped
        assert client.ask(f"free {other}") == 0
        assert held(machine) == {pid: 0}
        assert client.ask(f"external {client.ask('info')[0] + 1}")[0] == 2
