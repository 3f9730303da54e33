# SPDX-License-Identifier: Apache-2.0
"""What a container asks for by its config.json: read once, for who gives it and who explains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpushare.quota import (
    Cards,
    Given,
    Pod,
    Quota,
    Terms,
    give,
    pod_of,
    read_quota,
    visible_devices,
)


@dataclass(frozen=True)
class Asked:
    """What a container asks for: in words, and by the `cards` that its engine put into its spec."""

    quota: Quota
    cards: Cards | None
    visible: str | None
    pod: Pod | None
    terms: Terms

    def given(self) -> Given:
        """Return what that comes to on this node; QuotaError where it comes to nothing."""
        return give(self.quota, visible=self.visible, cards=self.cards)


def asked_of(  # noqa: PLR0913 - one argument a source
    annotations: Mapping[str, str],
    env: Mapping[str, str],
    *,
    of_pod: Mapping[str, str] | None,
    cards: Cards | None,
    terms_of: Callable[[str], Terms],
    operator: Mapping[str, str] | None = None,
) -> Asked:
    """Return what a container asks for; QuotaError as gpushare.quota.read_quota.

    `annotations` are its own, as far as they are believed (oci/pods.py), `of_pod` those of its pod,
    and `terms_of` says what containers of a namespace are held to.
    """
    pod = pod_of(annotations)
    terms = terms_of("" if pod is None else pod.namespace)
    quota = read_quota(
        annotations,
        env,
        of_pod=of_pod,
        operator=operator,
        cards=cards,
        defaults=terms.defaults,
        trust=terms.trust,
        dialects=terms.dialects,
    )
    return Asked(quota, cards, visible_devices(env), pod, terms)
