# SPDX-License-Identifier: Apache-2.0
"""What feeds the watchdog."""

from __future__ import annotations

import json

import pytest

from gpushare.daemon.service.systemd import Watchdog

LIMIT = 60.0


class ManualClock:
    """Continues when it is released."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("stuck", ["decide", "truth"])
def test_a_thread_that_hangs_starves_it_and_is_named_once(
    stuck: str, capfd: pytest.CaptureFixture[str]
) -> None:
    clock, said = ManualClock(), list[str]()
    pulse = Watchdog(("decide", "truth"), LIMIT, clock)
    hung = clock.now
    fed = hung
    while clock.now < hung + 2 * LIMIT:
        clock.now += pulse.period
        pulse.beat("truth" if stuck == "decide" else "decide")
        before = len(said)
        pulse.feed(said.append)
        fed = clock.now if len(said) > before else fed
    # systemd acts LIMIT after the last word: before twice that has gone by since it hung.
    assert fed - hung <= LIMIT / 2
    logged = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["event"], line["threads"]) for line in logged] == [("thread-hung", [stuck])]
    pulse.beat(stuck)
    pulse.feed(said.append)
    assert said[-1] == "WATCHDOG=1"
    assert json.loads(capfd.readouterr().err)["event"] == "thread-recovered"
