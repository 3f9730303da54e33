# SPDX-License-Identifier: Apache-2.0
"""Limits and requests of extended resources, which Kubernetes wants to be the same."""

from __future__ import annotations

from collections.abc import Iterator

from gpushare.manifest.check.finding import Finding, of_key, of_value
from gpushare.manifest.file import Container
from gpushare.quota.dialects import TABLES
from gpushare.quota.errors import quoted


def resources(container: Container) -> Iterator[Finding]:
    """Yield requests that are not their limits. Only vendors' resources are looked at.

    Source: Kubernetes, "Extended resources": a request without a limit is refused, and so is one
    that differs from it. What of either may be left out is the request.
    """
    texts = {name: value.text for name, value in container.requests.items()}
    known = dict.fromkeys(word.name for word in TABLES.find("limit", texts))
    for name in known:
        request, limit = container.requests[name], container.limits.get(name)
        if limit is None:
            fix = "write it under limits; the request may be left out"
            yield of_key(f"request {name}", request, "has no limit beside it", fix)
        elif request.text.strip() != limit.text.strip():
            rule = f"is not the limit, {quoted(limit.text)}"
            fix = f"write {limit.text}, or leave the request out"
            yield of_value(f"request {name}", request, rule, fix)
