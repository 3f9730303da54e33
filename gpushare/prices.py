# SPDX-License-Identifier: Apache-2.0
"""The section prices of gpushare.yaml, for `gpushare report chargeback`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_RATES: Final = ("gpu_hour", "gib_hour")


@dataclass(frozen=True)
class Rate:
    """The price of one hour of a whole card's compute, and of one GiB of its memory for an hour."""

    gpu_hour: float = 0.0
    gib_hour: float = 0.0


@dataclass(frozen=True)
class Prices:
    """Rates of all cards and of card models; `basis` is what is charged.

    It is `used`, `requested` or `larger` (of the two, for each container on each card).
    """

    currency: str = ""
    basis: str = "larger"
    rate: Rate = field(default_factory=Rate)
    models: tuple[tuple[str, Rate], ...] = ()

    def rate_of(self, model: str) -> Rate:
        """Return the rate of the first of `models` whose words are in `model`, or that of all."""
        rates = (rate for words, rate in self.models if words.casefold() in model.casefold())
        return next(rates, self.rate)


def prices(given: Mapping[str, Any]) -> Prices:
    """Return the prices of the section, which has been checked."""
    plain, rate = Prices(), _rate(given, Rate())
    return Prices(
        currency=given.get("currency") or plain.currency,
        basis=given.get("basis") or plain.basis,
        rate=rate,
        models=tuple(
            (words, _rate(section or {}, rate))
            for words, section in (given.get("models") or {}).items()
        ),
    )


def _rate(section: Mapping[str, Any], otherwise: Rate) -> Rate:
    values = {key: section.get(key) for key in _RATES}
    return Rate(
        **{
            key: getattr(otherwise, key) if value is None else float(value)
            for key, value in values.items()
        }
    )
