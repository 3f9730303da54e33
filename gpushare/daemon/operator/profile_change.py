# SPDX-License-Identifier: Apache-2.0
"""A change of a running tenant to a profile: what it comes to on the tenant's cards."""

from __future__ import annotations

from collections.abc import Mapping

from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import KEYS
from gpushare.quota.profiles import expand_change
from gpushare.quota.request import PROFILE
from gpushare.quota.size import exact_size


def change_by_profile(
    record: TenantRecord, change: Mapping[str, str], state: DaemonState
) -> Mapping[str, str]:
    """Return `change` with the values of its profile; a part of a card is that of the tenant's."""
    if PROFILE not in change:
        return change
    values = expand_change(change, state.config.terms.profiles)
    percent = KEYS["memory-percent"].parse(values.pop("memory-percent", "100"))
    assert not isinstance(percent, (str, tuple))
    if "memory" not in values:
        cards = [state.loaded().card(one.uuid) for one in record.allocations]
        sizes = {card.memory_bytes for card in cards if card is not None}
        if len(sizes) != 1:
            rule = f"is a part of a card, and the cards of {record.title} have different sizes"
            raise QuotaError("--profile", change[PROFILE], rule, "set --memory and --cores")
        values["memory"] = exact_size(sizes.pop() * percent // 100)
    return values
