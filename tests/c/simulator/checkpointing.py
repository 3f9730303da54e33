# SPDX-License-Identifier: Apache-2.0
"""What the tests of checkpoints share: programs that are checkpointed, and their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gpushare import simulator

from .conftest import ClientProcess, SimulatorMachine

MIB = 1 << 20
GIB = 1 << 30
FAST = 0.001  # the time scale: copies take next to no time
CONTEXT = simulator.load_profile("h200")["context_bytes"]
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
OK, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = range(4)
OPERATING_SYSTEM, ILLEGAL_STATE, NOT_READY, NOT_SUPPORTED = 304, 401, 600, 801


@contextmanager
def started(machine: SimulatorMachine, count: int = 1) -> Iterator[tuple[ClientProcess, ...]]:
    """Start `count` programs with a context, and one without that checkpoints them."""
    with ExitStack() as stack:
        clients = [stack.enter_context(machine.started("checkpoint.py")) for _ in range(count + 1)]
        for client in clients:
            assert client.ask("init") == OK
        for client in clients[:-1]:
            assert client.ask("context") == OK
        yield tuple(clients)


def allocated(client: ClientProcess, line: str) -> int:
    """Allocate by a line, and return the pointer."""
    result, pointer = client.ask(line)
    assert result == OK, line
    return int(pointer)


def room(client: ClientProcess) -> int:
    """Return the size of the largest allocation that the card has room for."""
    return int(client.ask("info")[0]) // (2 * MIB) * 2 * MIB


def cards(machine: SimulatorMachine) -> list[dict[str, Any]]:
    """Return what NVML has of each card."""
    found: list[dict[str, Any]] = machine.ask("nvml.py")["cards"]
    return found


def used(machine: SimulatorMachine) -> list[int]:
    """Return the memory of programs on each card, by the card's sum."""
    return [card["used_by_programs"] for card in cards(machine)]


#: What a program allocates, writes and compares, by the lines that do it.
KINDS = ("alloc 3000", f"alloc {64 * MIB}", f"pooled {5 * MIB}", f"mapped {4 * MIB}")


def fill_all(target: ClientProcess, seed: str) -> Callable[[], None]:
    """Give a program memory of every kind; return a function that compares all of it."""
    pointers = {line: allocated(target, line) for line in KINDS}
    for line, pointer in pointers.items():
        size = int(line.split()[1])
        assert target.ask(f"fill {pointer} {seed}{size} {size}") == OK
    assert target.ask(f"pinned {MIB} {seed}") == OK
    assert target.ask(f"array {seed}") == OK
    assert target.ask("event") == OK
    assert target.ask("graph") == OK
    assert target.ask("sync") == OK
    span = target.ask("elapsed")

    def compare() -> None:
        for line, pointer in pointers.items():
            size = int(line.split()[1])
            assert target.ask(f"same {pointer} {seed}{size} {size}") == [OK, True], line
        assert target.ask("pinned_same")
        assert target.ask("array_same")
        assert target.ask("elapsed") == span
        assert target.ask("graph_launch") == OK
        assert target.ask("launch 1 3") == OK
        assert target.ask("sync") == OK

    return compare
