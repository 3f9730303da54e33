# SPDX-License-Identifier: Apache-2.0
"""PyTorch with known contents on the card; understands the commands with which they are compared.

They are those of gpushare-probe. What PyTorch raises ends this program, and its words are shown.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from .conversation import Answer, say


class TorchContents:
    """A tensor on the card, and what was written to it."""

    def __init__(self) -> None:
        self.torch: Any = import_module("torch")
        self.held: Any = None
        self.written: Any = None

    def alloc(self, _api: str, size: str) -> Answer:
        self.held = self.torch.empty(int(size), dtype=self.torch.uint8, device="cuda")
        return {"code": 0}

    def write(self, seed: str) -> Answer:
        self.torch.manual_seed(int(seed))
        self.written = self.torch.randint(256, self.held.shape, dtype=self.torch.uint8)
        self.held.copy_(self.written)
        return self.check(seed)

    def check(self, _seed: str) -> Answer:
        different = int((self.held.cpu() != self.written).sum())
        return {"code": 0, "bytes": self.held.nbytes, "different": different}


def main() -> None:
    contents = TorchContents()
    say("driver", {})
    for line in sys.stdin:
        word, *arguments = line.split()
        say(word, getattr(contents, word)(*arguments))


if __name__ == "__main__":
    main()
