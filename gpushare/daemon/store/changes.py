# SPDX-License-Identifier: Apache-2.0
"""Who follows the ledger: what has to know when tenants have, or may have, something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Follower = Callable[[], None]


class Changes:
    """Its `followers` are called, each after every change, by the decide thread.

    A follower returns at once, and looks at the ledger later. The composition root fills the list.
    """

    def __init__(self) -> None:
        self.followers: list[Follower] = []
        self._is_deferred = False
        self._is_due = False

    def __call__(self) -> None:
        """Tell the followers, or note in a `deferred` block that they have to be told."""
        if self._is_deferred:
            self._is_due = True
            return
        for follower in self.followers:
            follower()

    @contextmanager
    def deferred(self, soon: Callable[[Follower], None]) -> Iterator[None]:
        """Have the followers told by `soon`, not in the block, which is a step of a start.

        A thread that a follower wakes would take the interpreter from the start.
        """
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
            if self._is_due:
                self._is_due = False
                soon(self)
