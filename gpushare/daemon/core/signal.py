# SPDX-License-Identifier: Apache-2.0
"""Signals: what happens in a part of the daemon, for those that are above it.

A part calls the parts that it was made with. What others do when something happens to it, it does
not know: `composition` fills the lists of listeners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Signal(Generic[P]):
    """Its `listeners` are called when it is, in their order, by the same thread."""

    def __init__(self) -> None:
        self.listeners: list[Callable[P, object]] = []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell the listeners."""
        for listener in self.listeners:
            listener(*args, **kwargs)


class ChangeSignal(Signal[[]]):
    """The ledger's, after every change; its listeners return at once, and look at it later.

    Only the thread that changes the ledger says so.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_deferred = False
        self._is_due = False

    def __call__(self) -> None:
        """Tell the listeners, or note in a `deferred` block that they have to be told."""
        if self._is_deferred:
            self._is_due = True
        else:
            super().__call__()

    @contextmanager
    def deferred(self, soon: Callable[[Callable[[], None]], None]) -> Iterator[None]:
        """Have the listeners told by `soon`, not in the block, which is a step of a start.

        A thread that a listener wakes would take the interpreter from the start.
        """
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
            if self._is_due:
                self._is_due = False
                soon(super().__call__)  # by another thread, maybe within another such block
