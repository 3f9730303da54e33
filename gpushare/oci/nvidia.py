# SPDX-License-Identifier: Apache-2.0
"""A GPU that an engine put into a spec before us, recognised so that it can be taken out whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.oci.driver import Driver
from gpushare.oci.edits import Path
from gpushare.oci.spec import Spec
from gpushare.quota.cards import Cards


@dataclass(frozen=True)
class Request:
    """What was found: the cards that it asks for (None: none), and for `edits.apply` the entries
    to take out, by list and index."""

    cards: Cards | None = None
    taken: Mapping[Path, Sequence[int]] = field(default_factory=dict)


def find(spec: Spec, driver: Driver) -> Request:
    """Return the GPU that is in `spec` already, from `strip`; QuotaError where it is not known
    how to take it out."""
    raise NotImplementedError
