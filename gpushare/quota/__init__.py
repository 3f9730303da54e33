# SPDX-License-Identifier: Apache-2.0
"""Quotas: from annotations and environment to what is given. Pure, standard library only."""

from gpushare.quota.cards import Cards
from gpushare.quota.ceilings import Ceilings, Terms, Together, Total
from gpushare.quota.defaults import Defaults
from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.given import DEFAULT_PRIORITY, Given, Kind, give, refuse_whole
from gpushare.quota.others import Dialects
from gpushare.quota.pod import Pod, pod_of, without_pod
from gpushare.quota.quota import Asked, Quota, Source
from gpushare.quota.size import exact_size, format_size, format_use, parse_size
from gpushare.quota.sources import Trust, default_trust, read_again, read_quota
from gpushare.quota.visible import visible_devices

__all__ = [
    "DEFAULT_PRIORITY",
    "Asked",
    "BadValue",
    "Cards",
    "Ceilings",
    "Defaults",
    "Dialects",
    "Given",
    "Kind",
    "Pod",
    "Quota",
    "QuotaError",
    "Source",
    "Terms",
    "Together",
    "Total",
    "Trust",
    "default_trust",
    "exact_size",
    "format_size",
    "format_use",
    "give",
    "parse_size",
    "pod_of",
    "read_again",
    "read_quota",
    "refuse_whole",
    "visible_devices",
    "without_pod",
]
