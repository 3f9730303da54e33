# SPDX-License-Identifier: Apache-2.0
"""A request in short, for comparison in tests."""

from __future__ import annotations

from collections.abc import Mapping

from gpushare.quota.request import RequestedValue, recorded_text, to_record


def rows(values: Mapping[str, RequestedValue]) -> dict[str, str]:
    """Return `{"memory": "4GiB annotation"}`."""
    return {key: recorded_text(one) for key, one in to_record(values).items()}
