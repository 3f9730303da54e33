# SPDX-License-Identifier: Apache-2.0
"""Quotas: from annotations and environment to an effective request. Standard library only."""

from gpushare.quota.annotations import PodIdentity, lasting_id, pod_of, without_pod
from gpushare.quota.effective_request import (
    DEFAULT_PRIORITY,
    Defaults,
    EffectiveRequest,
    SharingMode,
    resolve_request,
    whole_cards_refused,
)
from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.keys import request_from
from gpushare.quota.parse import (
    change_recorded,
    default_trust,
    parse_change,
    parse_manifest,
    parse_request,
)
from gpushare.quota.request import (
    EngineCards,
    QuotaRequest,
    RecordedValue,
    RequestedValue,
    RequestRecord,
    ValueSource,
    recorded_text,
    to_record,
    visible_devices,
)
from gpushare.quota.request_policy import (
    Dialects,
    EnvTrust,
    MaxPerCard,
    MaxPerNode,
    MaxPerRequest,
    RequestPolicy,
)
from gpushare.quota.size import exact_size, format_size, format_use, parse_size

__all__ = [
    "DEFAULT_PRIORITY",
    "BadValue",
    "Defaults",
    "Dialects",
    "EffectiveRequest",
    "EngineCards",
    "EnvTrust",
    "MaxPerCard",
    "MaxPerNode",
    "MaxPerRequest",
    "PodIdentity",
    "QuotaError",
    "QuotaRequest",
    "RecordedValue",
    "RequestPolicy",
    "RequestRecord",
    "RequestedValue",
    "SharingMode",
    "ValueSource",
    "change_recorded",
    "default_trust",
    "exact_size",
    "format_size",
    "format_use",
    "lasting_id",
    "parse_change",
    "parse_manifest",
    "parse_request",
    "parse_size",
    "pod_of",
    "recorded_text",
    "request_from",
    "resolve_request",
    "to_record",
    "visible_devices",
    "whole_cards_refused",
    "without_pod",
]
