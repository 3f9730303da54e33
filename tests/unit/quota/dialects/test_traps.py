# SPDX-License-Identifier: Apache-2.0
"""What two systems write alike and mean differently."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpushare.quota.dialects import (
    OURS,
    TABLES,
    DialectLayer,
    DialectRequest,
    KeyLocation,
    combine,
)
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import KEYS, read, request_from
from gpushare.quota.parse import parse_request
from gpushare.quota.precedence import merge_dialects
from gpushare.quota.request import ValueSource
from gpushare.quota.request_policy import Dialects

GIB = 1 << 30


def all_said(words: Mapping[KeyLocation, Mapping[str, str]]) -> list[DialectRequest]:
    """Return what `words` say, by dialect."""
    found = [word for where, values in words.items() for word in TABLES.find(where, values)]
    return combine(found, strict=True, position=0)


def ours(**texts: str) -> DialectLayer:
    """Return what gpushare's own keys say."""
    source = {key: ValueSource("env", KEYS[key].env) for key in texts}
    return DialectLayer(
        OURS, {key: read(key, source[key], text, KEYS) for key, text in texts.items()}
    )


def test_of_a_whole_card_and_a_part_a_lenient_node_takes_the_part() -> None:
    [spoken] = all_said({"env": {"CUDA_DEVICE_SM_LIMIT": "100"}})
    whole = DialectLayer(spoken.dialect.title, spoken.layer)
    both = merge_dialects((whole, ours(memory="2GiB")))
    given = resolve_request(request_from(both.layer))
    assert (given.kind, given.memory_bytes) == ("shared", 2 * GIB)
    assert both.notes


def test_cards_that_a_scheduler_noted_are_no_requests_of_containers() -> None:
    pod = {
        "io.kubernetes.cri.container-name": "c1",
        "vke.volcengine.com/gpu-index-container-c1": "0,1",
        "vke.volcengine.com/gpu-index-container-c2": "2",
        "vke.volcengine.com/container-multiple-gpu": "2",
    }
    with pytest.raises(QuotaError, match="Resource limits are not passed"):
        parse_request(pod, {}, dialects=Dialects()).valid()
