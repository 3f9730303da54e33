# SPDX-License-Identifier: Apache-2.0
"""How long a start may run, across restarts of gpushared."""

from __future__ import annotations

from pathlib import Path

from .node import StoryNode, node


def ends_at(made: StoryNode, name: str) -> float:
    return float(made.ask("tenant", name=name)["tenant"]["ends_at"])


def test_a_time_limit_counts_from_the_start_whatever_happens_to_the_daemon(tmp_path: Path) -> None:
    with node(tmp_path) as before:
        before.opens("timed", "10GiB", time_limit="1h")
        first = ends_at(before, "timed")
    with node(tmp_path) as after:
        assert abs(ends_at(after, "timed") - first) < 60
        after.ask("set", name="timed", time_limit="3h")
        assert abs(ends_at(after, "timed") - first - 7200) < 60
