# SPDX-License-Identifier: Apache-2.0
"""The node's profiles, and how many more containers of each the cards have room for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Final

from gpushare.daemon.placement.model import AllocationUse, CardCapacity
from gpushare.daemon.placement.obstacles import find_obstacle
from gpushare.daemon.placement.request import PlacementRequest
from gpushare.daemon.state import DaemonState
from gpushare.protocol import ProfileStatus
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.keys import request_from
from gpushare.quota.profiles import ShareProfile
from gpushare.quota.request import PROFILE, RequestedValue, ValueSource

_SOURCE: Final = ValueSource("default", PROFILE)


def profile_rows(state: DaemonState) -> Iterator[ProfileStatus]:
    """Yield the row of each profile, in the order of gpushare.yaml."""
    terms = state.config.terms
    capacities = state.capacities()
    for profile in terms.profiles.values():
        request = _request(profile, terms.defaults.policy)
        yield ProfileStatus(
            name=profile.name,
            requests=dict(profile.values),
            fits=sum(_fits(request, capacity) for capacity in capacities),
        )


def _request(profile: ShareProfile, policy: str | None) -> PlacementRequest:
    named = RequestedValue(profile.name, profile.name, _SOURCE)
    effective = resolve_request(request_from(profile.layer(named)))
    return PlacementRequest(
        memory_bytes=effective.memory_bytes,
        memory_percent=effective.memory_percent,
        memory_limit_bytes=effective.memory_limit_bytes,
        cores=effective.cores,
        policy=profile.values.get("policy") or policy or effective.policy,
    )


def _fits(request: PlacementRequest, capacity: CardCapacity) -> int:
    """Return how many more of a request a card has room for, one placed after the other."""
    more: list[AllocationUse] = []
    for number in count():
        held = (*capacity.allocations, *more)
        if find_obstacle(request, replace(capacity, allocations=held)) is not None:
            return number
        wanted = request.wanted_of(capacity)
        more.append(AllocationUse("", wanted.memory_bytes, wanted.cores))
    raise AssertionError
