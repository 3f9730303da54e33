# SPDX-License-Identifier: Apache-2.0
"""Rules for what the annotations of a container request together, for the validating policy.

Those of one container are a layer, and so are those of its pod that name no container. `l` is the
beginning of their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from gpushare.daemon.limits import EXCLUSIVE, UNSUPPORTED
from gpushare.quota.effective_request import ADD, SHARES
from gpushare.quota.keys import ANNOTATION_PREFIX, KEYS, SHORT_POLICIES
from gpushare.quota.request import REMOTE
from gpushare.quota.request_policy import CONFLICT, SET_BY_PROFILE

from .policy_text import quantity, refusal, text


class Rule(NamedTuple):
    """A rule for what one layer requests.

    In an expression, `?key` is whether the layer has a key, and `$key` its text. `rest` is the
    expression of what follows the key and its value in the message.
    """

    key: str
    condition: str
    rest: str


def _source(key: str) -> str:
    """Return the expression of the place of a layer's key."""
    return (
        f"""(l == {text(ANNOTATION_PREFIX)} ? "pod annotation " : "annotation ") + l + "{key}\""""
    )


_SHARES: Final = [
    *SHARES,
    *(short for short, policy in SHORT_POLICIES.items() if policy in SHARES),
]
_CARDS: Final = "(?count || ?devices)"
_MEMORY: Final = "(?memory || ?memory-percent || ?profile)"
_LIMIT, _AMOUNT = quantity("$memory-limit"), quantity("$memory")
_BELOW: Final = f"""\
?memory-limit && ?memory && isQuantity({_LIMIT}) && isQuantity({_AMOUNT}) &&
    quantity({_LIMIT}).isLessThan(quantity({_AMOUNT}))"""

#: Requests that no node accepts.
CONTRADICTIONS: Final = (
    Rule(
        "memory",
        "?memory && ?memory-percent",
        f'": conflicts with " + {_source("memory-percent")} + '
        '": both set memory. Keep one of the two."',
    ),
    Rule(
        "profile",
        f"?profile && ({' || '.join(f'?{key}' for key in SET_BY_PROFILE)})",
        refusal(*CONFLICT),
    ),
    Rule(
        REMOTE,
        f"?{REMOTE} && ({' || '.join(f'?{key}' for key in KEYS if key != REMOTE)})",
        refusal(
            "conflicts with the other keys: the quota of a remote GPU is set where its server runs",
            "remove them, and set them for the server there",
        ),
    ),
    Rule(
        "memory-limit", _BELOW, '": below memory " + $memory + ". Write " + $memory + " or more."'
    ),
    Rule(
        "count",
        '?devices && ?count && $count.matches("^[0-9]{1,9}$") &&\n'
        '    int($count) != $devices.split(",").size()',
        f'": not the number of cards in " + {_source("devices")} + ". Write " +\n'
        '    string($devices.split(",").size()) + ", or omit count."',
    ),
    Rule(
        "backend",
        f'?backend && $backend == "{EXCLUSIVE}" && !(?cores && $cores == "100") &&\n'
        f"    !({_CARDS} && !?cores && !{_MEMORY})",
        refusal(*UNSUPPORTED[EXCLUSIVE]),
    ),
)
_OPTIONS: Final = [
    name
    for name in KEYS
    if name not in {*SET_BY_PROFILE[:4], "profile", "count", "devices", REMOTE}
]
#: Requests that a node refuses if it has no `defaults` of memory and cores.
INCOMPLETE: Final = (
    Rule(
        "memory-limit",
        f"?memory-limit && !{_MEMORY}",
        refusal(
            "sets a burst limit, but memory is not requested",
            "add gpushare.io/memory or GPUSHARE_MEMORY, the guaranteed part",
        ),
    ),
    Rule(
        "cores",
        f'?cores && $cores != "100" && !?memory-limit && !{_MEMORY}',
        refusal(
            "requests cores without memory", "add gpushare.io/memory or GPUSHARE_MEMORY, e.g. 4GiB"
        ),
    ),
    *(
        Rule(
            name,
            f"?{name} && !?memory-limit && !?cores && !{_MEMORY} && !{_CARDS}"
            + "".join(f" && !?{one}" for one in _OPTIONS[:number]),
            refusal("requires a memory or card request", ADD),
        )
        for number, name in enumerate(_OPTIONS)
    ),
    Rule(
        "policy",
        f"?policy && $policy in {text(_SHARES)} && {_MEMORY} && !?cores",
        refusal(
            "requires cores, but none are requested",
            "add gpushare.io/cores or GPUSHARE_CORES, e.g. 30",
        ),
    ),
)


def in_layers(rules: Iterable[Rule]) -> str:
    """Return the messages of rules for what one layer requests.

    Layers that narrow each other are left to the node, as is what is requested in other ways too.
    """
    parts = [
        f"""\
  variables.layers.filter(l, {_keyed(rule.condition)}).map(l,
    variables.requests.filter(r, r.name == l + "{rule.key}")[0].where + {_keyed(rule.rest)})"""
        for rule in rules
    ]
    mixed = "variables.scoped.size() > 0 && variables.unscoped.size() > 0"
    return f"!variables.alone || {mixed} ? [] :\n" + " +\n".join(parts)


def _keyed(expression: str) -> str:
    """Replace `?key` and `$key` in an expression of a layer."""

    def written(match: re.Match[str]) -> str:
        name = f'l + "{match[2]}"'
        if match[1] == "?":
            return f"({name} in variables.annotations)"
        return f"string(variables.annotations[{name}]).trim()"

    names = "|".join(sorted(KEYS, key=len, reverse=True))
    return re.sub(rf"([?$])({names})\b", written, expression)
