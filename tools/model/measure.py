# SPDX-License-Identifier: Apache-2.0
"""What became of the card's time."""

import math
from itertools import pairwise

from tools.model.clock import MS, SECOND
from tools.model.tenant import ModelTenant

BIN = 10 * MS


def bins(spans: list[list[int]], until: int) -> list[int]:
    """Card time of each hundredth of a second, nanoseconds."""
    out = [0] * (until // BIN + 1)
    for start, end in spans:
        for at in range(start // BIN, min(len(out), end // BIN + 1)):
            out[at] += min(end, (at + 1) * BIN) - max(start, at * BIN)
    return out


def share(tenant: ModelTenant, start: int, end: int, card: int = 0) -> float:
    """Its part of the card between two times, in percent."""
    time = sum(max(0, min(e, end) - max(s, start)) for s, e in tenant.spans(card))
    return 100 * time / (end - start)


def over(
    tenant: ModelTenant, start: int, end: int, window: int = SECOND, card: int = 0
) -> list[float]:
    """Its part in every `window`, in percent, a window beginning each hundredth of a second."""
    sums = [0]
    for each in bins(tenant.spans(card), end):
        sums.append(sums[-1] + each)
    width = window // BIN
    first, last = start // BIN, end // BIN
    return [100 * (sums[at + width] - sums[at]) / window for at in range(first, last - width + 1)]


def error(
    tenant: ModelTenant, percent: float, start: int, end: int, card: int = 0
) -> tuple[float, float]:
    """Mean and greatest difference from `percent` over one second, in points of the card."""
    errors = [abs(got - percent) for got in over(tenant, start, end, card=card)]
    return sum(errors) / len(errors), max(errors)


def ratio_errors(
    tenants: list[ModelTenant], weights: list[float], start: int, end: int
) -> tuple[float, float]:
    """Mean and greatest difference over one second from its part of what all of them used.

    In points of the card, of the tenant that is worst off.
    """
    used = [over(tenant, start, end) for tenant in tenants]
    sums = [sum(each) for each in zip(*used, strict=True)]
    errors = [
        [abs(got - total * weight / sum(weights)) for got, total in zip(each, sums, strict=True)]
        for each, weight in zip(used, weights, strict=True)
    ]
    return max(sum(each) / len(each) for each in errors), max(map(max, errors))


def idle(tenants: list[ModelTenant], start: int, end: int, card: int = 0) -> float:
    """How long the card had no tenant's work on it, in percent: switches and pauses."""
    return 100 - sum(share(tenant, start, end, card) for tenant in tenants)


def longest_pause(tenants: list[ModelTenant], start: int, end: int) -> int:
    """The longest time in which no tenant had the card."""
    spans = sorted((s, e) for tenant in tenants for s, e in tenant.spans() if e > start and s < end)
    edges = [(start, start), *spans, (end, end)]
    return max(after[0] - before[1] for before, after in pairwise(edges))


def percentile(values: list[int], percent: float) -> int:
    """The nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked), math.ceil(percent / 100 * len(ranked))) - 1]
