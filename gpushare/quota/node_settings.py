# SPDX-License-Identifier: Apache-2.0
"""Settings of a node that labels of its Node object may set, by the key of gpushare.yaml.

A label sets no more than the policy, the placement, and the mode of the node or of its cards, and
HAMi's annotation cordons cards. Other systems' labels are rows of their tables (quota/dialects);
these are gpushare's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypedDict

from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.keys import ANNOTATION_PREFIX, KEYS, Key, choice_key
from gpushare.quota.request import Value, ValueSource

POLICY: Final = "defaults.policy"
PLACEMENT: Final = "defaults.placement"
ALLOWED_MODE: Final = "cards.allowed_mode"  # of all cards
NODE_MODE: Final = "kubernetes.mode"
RELEASED: Final = "driver.released"  # gpushared has let go of it, so that it can be unloaded
CORDONED: Final = "cards.cordoned"  # UUIDs; `gpushare card cordon` does the same for one card
#: Of the tables: what a vendor's label does here.
APPLIED: Final = "gpushare-node applies it as"

_UUID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z-]{1,64}", re.ASCII)


def _uuids(text: str) -> Value:
    items = list(dict.fromkeys(item.strip() for item in text.split(",")))
    if not all(map(_UUID.fullmatch, items)):
        raise BadValue("is not a list of UUIDs", "write e.g. GPU-4f1c...,GPU-81a0...")
    return ",".join(items)


NODE_SETTINGS: Final[Mapping[str, Key]] = {
    POLICY: KEYS["policy"],
    PLACEMENT: KEYS["placement"],
    ALLOWED_MODE: choice_key(
        ALLOWED_MODE,
        ("any", "shared", "exclusive"),
        "Which requests the cards accept: shares (shared), whole cards (exclusive), or both (any).",
    ),
    NODE_MODE: choice_key(
        NODE_MODE,
        ("annotations", "plugin", "dra"),
        "How pods request shares on the node, as the label gpushare.io/mode reports.",
    ),
    RELEASED: choice_key(RELEASED, ("yes",), "Whether the driver is about to be unloaded."),
    CORDONED: Key(
        CORDONED,
        "",
        _uuids,
        lambda higher, _: higher,
        "The cards on which no container is placed, by UUID.",
    ),
}
#: The beginning of gpushare's labels that set something.
OWN: Final = f"{ANNOTATION_PREFIX}wanted-"
#: Their settings: the first one that has the value is set.
OWN_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    f"{OWN}policy": (POLICY,),
    f"{OWN}placement": (PLACEMENT,),
    f"{OWN}mode": (NODE_MODE, ALLOWED_MODE),
}


class NodeSetting(TypedDict):
    """The value of a setting, and what sets it: `node label gpushare.io/wanted-policy`."""

    value: str
    source: str


def read_own_label(name: str, text: str) -> tuple[str, str]:
    """Return the setting of a label that begins with OWN, and its value; QuotaError."""
    where, fixes = str(ValueSource("node label", name)), []
    if name not in OWN_LABELS:
        raise QuotaError(where, text, "unknown label", f"the labels are {', '.join(OWN_LABELS)}")
    for key in OWN_LABELS[name]:
        try:
            return key, str(NODE_SETTINGS[key].parse(text))
        except BadValue as bad:
            fixes.append(bad.fix)
    fix = "; for the cards, ".join(fixes)
    raise QuotaError(where, text, "is not a valid value", fix)
