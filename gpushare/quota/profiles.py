# SPDX-License-Identifier: Apache-2.0
"""Profiles: the node's names for sizes of a share (`profiles` in gpushare.yaml).

A profile stands in the request for the keys that it sets, with the place where it was named as
their source. Beside it, in the same place, none of them may be set: of the two neither is obvious.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.keys import KEYS, Diagnostics, read
from gpushare.quota.request import PROFILE, Diagnostic, Layer, RequestedValue, ValueSource

#: What a profile may set, and what may therefore not be set beside one.
SET_BY_PROFILE: Final = ("memory", "memory-percent", "memory-limit", "cores", "policy", "weight")
#: What is wrong with a profile beside them, and what to do.
CONFLICT: Final = (
    "sets memory and compute, and so do other keys beside it",
    "keep the profile or the other keys",
)
#: NVIDIA's vGPU policy: time is divided equally among those that run. Its two others have the
#: names of ours, best-effort and fixed-share ("Scheduling Policies", AI Enterprise 8.1).
EQUAL_SHARE: Final = "equal-share"
#: Policies that guarantee no part of the card's time.
_WITHOUT_CORES: Final = frozenset({"best-effort", EQUAL_SHARE, "native-burst-share"})


@dataclass(frozen=True)
class ShareProfile:
    """What a profile requests: texts by canonical key."""

    name: str
    values: Mapping[str, str]

    def layer(self, named: RequestedValue) -> Layer:
        """Return its values as requested where `named`, the profile's name, was written."""
        return {
            key: RequestedValue(text, KEYS[key].parse(text), named.source, written=named.shown)
            for key, text in self.values.items()
        }


ShareProfiles: TypeAlias = "Mapping[str, ShareProfile]"


def profile(name: str, given: Mapping[str, Any]) -> ShareProfile:
    """Return the profile of a section of gpushare.yaml, whose form has been checked.

    `equal: N` is one of N equal parts of a card, exactly: its memory and, unless the policy
    guarantees none, its compute, of which N parts leave less than N percent over.
    """
    values = {
        key.replace("_", "-"): str(value)
        for key, value in given.items()
        if value is not None and key != "equal"
    }
    policy = values.get("policy")
    if (parts := given.get("equal")) is not None:
        whole, rest = divmod(100, parts)
        values["memory-percent"] = str(whole) if not rest else f"100/{parts}"
        if policy not in _WITHOUT_CORES and "cores" not in values:
            values["cores"] = str(whole)
    if policy == EQUAL_SHARE:
        values |= {"policy": "native-burst-share", "weight": values.get("weight", "1")}
    return ShareProfile(name, {key: values[key] for key in SET_BY_PROFILE if key in values})


def expand(layer: Layer, profiles: ShareProfiles | None, diagnostics: Diagnostics) -> Layer:
    """Return `layer` with what its profile requests in place of the profile's name.

    `profiles` None: those of the node are not known; the name stays.
    """
    named = layer.get(PROFILE)
    if named is None:
        return layer
    rest = {key: value for key, value in layer.items() if key != PROFILE}
    if not rest.keys().isdisjoint(SET_BY_PROFILE):
        error = QuotaError(str(named.source), named.shown, *CONFLICT)
        diagnostics.append(Diagnostic(error, named.source))
        return rest
    if profiles is None:
        return layer
    try:
        return {**_known(named, profiles).layer(named), **rest}
    except QuotaError as unknown:
        diagnostics.append(Diagnostic(unknown, named.source))
        return rest


def expand_change(change: Mapping[str, str], profiles: ShareProfiles) -> dict[str, str]:
    """Return the texts of a change with what its profile sets, if it names one; QuotaError."""
    diagnostics = Diagnostics()
    layer = {key: read(key, ValueSource("option", key), text, KEYS) for key, text in change.items()}
    expanded = expand(layer, profiles, diagnostics)
    diagnostics.raise_first()
    return {key: one.text for key, one in expanded.items()}


def profile_of(layer: Layer, named: Mapping[str, RequestedValue]) -> RequestedValue | None:
    """Return the profile, by the place where it was `named`, whose memory `layer` has."""
    memory = layer.get("memory") or layer.get("memory-percent")
    return None if memory is None else named.get(str(memory.source))


def _known(named: RequestedValue, profiles: ShareProfiles) -> ShareProfile:
    found = profiles.get(str(named.value))
    if found is not None:
        return found
    if not profiles:
        bad = BadValue("names a profile, and this node has none", "add profiles to gpushare.yaml")
    else:
        close = get_close_matches(str(named.value), profiles, n=1, cutoff=0.6)
        names = f"the profiles are {', '.join(profiles)}"
        bad = BadValue(
            "is not a profile of this node", f"did you mean {close[0]}?" if close else names
        )
    raise QuotaError(str(named.source), named.shown, bad.rule, bad.fix)
