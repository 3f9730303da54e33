# SPDX-License-Identifier: Apache-2.0
"""Takes memory through the path that it is told: python -m tools.gpu.child.allocations."""

from __future__ import annotations

from tests.c.interposer import client
from tests.c.interposer.allocations import TakenMemory

from .conversation import Answer, converse


class AllocationProgram:
    """Its commands; `code` is the driver's error, 0 for none."""

    def __init__(self) -> None:
        self._taken = TakenMemory()

    def take(self, path: str, size: str) -> Answer:
        try:
            return {"code": 0, "number": self._taken.take(path, int(size))}
        except client.Refused as refused:
            return {"code": refused.args[1], "number": -1}

    def give(self, number: str) -> Answer:
        return {"code": client.result_of(self._taken.give, int(number))}

    def trim(self) -> Answer:
        return {"code": client.result_of(self._taken.trim)}

    def info(self) -> Answer:
        return {"free": client.memory()[0]}


if __name__ == "__main__":
    converse(AllocationProgram())
