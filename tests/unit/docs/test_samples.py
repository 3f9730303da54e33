# SPDX-License-Identifier: Apache-2.0
"""Sample outputs in the pages are what gpushare prints."""

from __future__ import annotations

import re

import pytest

from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request

from .markdown import PAGES, name

#: As an engine shows it: the refusal is the launcher's, and what follows the engine's.
_REFUSED = re.compile(r"gpushare: (env (GPUSHARE_\w+)=(\S+): .*?)(?:: unknown)?$", re.MULTILINE)
SAMPLES = [(name(page), *found) for page in PAGES for found in _REFUSED.findall(page.read_text())]


def test_there_are_samples() -> None:
    assert len(SAMPLES) >= 3


@pytest.mark.parametrize(("page", "sample", "key", "value"), SAMPLES)
def test_a_refusal_is_printed_unchanged(page: str, sample: str, key: str, value: str) -> None:
    with pytest.raises(QuotaError) as refused:
        parse_request({}, {key: value}).valid()
    assert str(refused.value) == sample, page
