# SPDX-License-Identifier: Apache-2.0
"""What the policies cost an API server, in the units by which it ends their evaluation."""

from __future__ import annotations

import pytest

from tools.admission import costs

pytestmark = pytest.mark.needs("admission")


def test_a_pod_that_requests_nothing_costs_the_match_conditions_alone() -> None:
    for pod in ("plain", "plain, mode dra"):
        for policy, parts in costs.decisions()[pod].costs.items():
            assert set(parts) == {"matchConditions"}, policy
            assert parts["matchConditions"] <= costs.PLAIN, policy


def test_the_largest_pods_stay_far_below_what_an_api_server_spends() -> None:
    for pod, one in costs.decisions().items():
        assert "cost" not in one.refused, pod
        for policy, parts in one.costs.items():
            assert sum(parts.values()) < costs.BUDGET / 4, (pod, policy, parts)
    assert costs.decisions()["64 containers, every vendor's keys"].changed
    assert costs.decisions()["64 containers of HAMi, mode dra"].changed
