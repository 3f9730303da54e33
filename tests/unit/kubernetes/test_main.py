# SPDX-License-Identifier: Apache-2.0
"""The loop of gpushare-node: when it is ready, and when it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.kubernetes import StatusLog, __main__
from gpushare.kubernetes.cards import CardFollower, SchedulableCard
from tests.unit.kubernetes.gpushared import FakeGpushared
from tests.unit.kubernetes.made import card


class AcceptedPlugin:
    """A plugin that the kubelet accepts in its second step."""

    steps = 0

    @property
    def is_registered(self) -> bool:
        return self.steps >= 2

    def update(self, cards: tuple[SchedulableCard, ...]) -> None:
        assert cards

    def step(self) -> None:
        self.steps += 1

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("plugins", [[], [AcceptedPlugin()]])
def test_it_is_ready_once_what_there_is_to_register_is_registered(
    plugins: list[AcceptedPlugin],
    daemon: FakeGpushared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready, seen = tmp_path / "ready", []

    def ends() -> Iterator[object]:
        for signalled in (None, None, signal.SIGTERM):
            seen.append(ready.exists())
            yield signalled

    waits = ends()
    monkeypatch.setattr(signal, "sigtimedwait", lambda *_: next(waits))
    daemon.rows = [card(system_reserved_bytes=0, cores_available=100, tenants=0)]
    follower = CardFollower(daemon, StatusLog())
    assert not __main__._run("plugin", daemon, follower, plugins, ready)
    assert seen == ([False, True, True] if plugins else [True, True, True])
