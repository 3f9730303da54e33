# SPDX-License-Identifier: Apache-2.0
"""A row of the benchmark of shares, much shorter: that all of it works together, not how well."""

from __future__ import annotations

from tools.bench import shares


def test_two_tenants_get_their_requests_rather_than_halves() -> None:
    failed: list[str] = []
    found = shares.measure(shares.select(["A"]), seconds=2, slow=2, failed=failed)
    assert failed == []
    figures = {figure.what: figure for figure in found}
    less, more = figures["a (30 %) used"], figures["b (70 %) used"]
    assert less.native is not None
    assert more.native is not None
    assert more.native / less.native < 1.2
    assert more.value / less.value > 1.8
