# SPDX-License-Identifier: Apache-2.0
"""What reports need: prices of all cards and of card models, and labels."""

from __future__ import annotations

from pathlib import Path

from gpushare.config import Config, parse
from gpushare.prices import Prices, Rate

FILE = Path("/etc/gpushare/gpushare.yaml")
TEXT = """
prices:
  currency: EUR
  gpu_hour: 1.20
  gib_hour: 0.02
  models:
    "H200 NVL": {gpu_hour: 3}
    h200: {gpu_hour: 4, gib_hour: 0}
"""


def test_without_prices_everything_is_free() -> None:
    assert Config().prices == parse("", FILE).prices == parse("prices:", FILE).prices == Prices()
    assert Prices().rate_of("NVIDIA H200") == Rate(0, 0)


def test_a_models_price_replaces_that_of_all_cards() -> None:
    found = parse(TEXT, FILE).prices
    assert (found.currency, found.basis) == ("EUR", "larger")
    assert found.rate_of("NVIDIA A100-SXM4-80GB") == Rate(1.2, 0.02)
    assert found.rate_of("NVIDIA H200 NVL") == Rate(3, 0.02)
    assert found.rate_of("NVIDIA H200") == Rate(4, 0)


def test_labels_of_reports_are_names() -> None:
    assert Config().labels == parse("", FILE).labels == ()
    assert parse("labels: [team, example.com/cost]", FILE).labels == ("team", "example.com/cost")
