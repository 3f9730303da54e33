# SPDX-License-Identifier: Apache-2.0
"""A row of the benchmark of shares, much shorter: that all of it works together, not how well."""

from __future__ import annotations

from tests.bench import shares


def test_two_tenants_get_what_they_asked_for_rather_than_halves() -> None:
    (scenario,) = shares.select(["A"])
    figures = {figure.what: figure for figure in shares.measure(scenario, seconds=2)}
    less, more = figures["a (30 %) had"], figures["b (70 %) had"]
    assert less.native is not None
    assert more.native is not None
    assert more.native / less.native < 1.2
    assert more.value / less.value > 1.8
