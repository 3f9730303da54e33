# SPDX-License-Identifier: Apache-2.0
"""A small network that PyTorch trains with fixed random numbers, so many steps as told."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from .conversation import Answer, converse

SEED, WIDTH, BATCH = 20, 512, 256


class TrainingSteps:
    """The network, and its losses so far."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._parts: tuple[Any, Any] | None = None

    def begin(self) -> Answer:
        """Build the network on the card."""
        # Before the driver is initialized: cuBLAS is deterministic only with it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch = self._torch = import_module("torch")
        torch.manual_seed(SEED)
        torch.use_deterministic_algorithms(mode=True)
        network = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)
        ).cuda()
        self._parts = network, torch.optim.Adam(network.parameters())
        return {"pid": os.getpid(), "torch": torch.__version__}

    def step(self, count: str) -> Answer:
        """Train `count` steps; return the losses, exactly."""
        if self._parts is None:
            raise RuntimeError("there is no network")
        network, optimizer = self._parts
        losses = []
        for _ in range(int(count)):
            given = self._torch.randn(BATCH, WIDTH, device="cuda")
            loss = (network(given) - given.sin()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss).hex())
        return {"losses": losses}


def main() -> None:
    training = TrainingSteps()
    converse({"begin": training.begin, "step": training.step})


if __name__ == "__main__":
    main()
