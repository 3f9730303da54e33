# SPDX-License-Identifier: Apache-2.0
"""Quotas: from annotations and environment to what is given. Pure, standard library only."""

from gpushare.quota.cards import Cards
from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.given import Defaults, Given, Kind, give, refuse_whole
from gpushare.quota.quota import Asked, Quota, Source
from gpushare.quota.size import exact_size, format_size, format_use, parse_size
from gpushare.quota.sources import Trust, default_trust, read_quota
from gpushare.quota.visible import visible_devices

__all__ = [
    "Asked",
    "BadValue",
    "Cards",
    "Defaults",
    "Given",
    "Kind",
    "Quota",
    "QuotaError",
    "Source",
    "Trust",
    "default_trust",
    "exact_size",
    "format_size",
    "format_use",
    "give",
    "parse_size",
    "read_quota",
    "refuse_whole",
    "visible_devices",
]
