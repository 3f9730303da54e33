# SPDX-License-Identifier: Apache-2.0
"""What is told of a tenant."""

from __future__ import annotations

from pathlib import Path

from .node import node


def test_its_row_and_the_report_on_its_memory_have_its_quota(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.opens("a", "10GiB")
        one.opens("b", "20GiB")
        row = one.ask("tenant", name="b")["tenant"]
        assert row in one.ask("tenants")["rows"]
        [card] = row["cards"]
        report = one.ask("why", name="b")["why"]
        assert (report["key"], report["name"]) == (row["key"], "b")
        [told] = report["cards"]
        assert told["quota_bytes"] == card["quota_bytes"] == 20 << 30
