# SPDX-License-Identifier: Apache-2.0
"""The control socket's language: who may ask what, and what comes back.

Transport: `SOCK_SEQPACKET` on `<run_dir>/control.sock`, one JSON object per packet. A request is at
most `MAX_REQUEST_BYTES`, a reply packet at most `MAX_REPLY_BYTES`. The daemon answers
`{"ack": true}` at once (a client gives up when that takes `ACK_SECONDS`), or `{"starting": true}`
and the acknowledgement when it is ready (within `START_SECONDS`), then any number of
`{"row": {...}}`, then one final `{"ok": true, ...}` or `{"ok": false, "code": ..., "error": ...}`
within `REPLY_SECONDS`. The C side of the same is `runtime/client.c`.

| op | from | fields | rows / result |
|---|---|---|---|
| create | launcher, root | id, bundle (path), verb, marker; fds: bundle, rootfs | given, key |
| bind | hook: root; `gpushare run`: who opened it | key, id, pid | - |
| release | hook: root; `gpushare run`: who opened it | key, id | - |
| open | `gpushare run`, root or own uid | quota {NAME: text}, name, pid, rootless | Opened |
| cards | anyone | - | Card rows |
| tenants | anyone | all (also what got no GPU, and why) | Tenant rows |
| tenant | anyone | name | tenant: Tenant |
| why | anyone | name | WhyProcess rows; why: Why |
| set | root | name; SET_FIELDS, texts, or reset: which, or "all" | tenant: Tenant, as it is now |
| pause | root | name; why (a text, or not) | tenant: Tenant, as it is now |
| resume | root | name | tenant: Tenant, as it is now |
| kick | root | name; signal (TERM, ...), grace (seconds); why (or not) | tenant: Tenant |
| reload | root | - | changed: the keys of gpushare.yaml that hold anew |
| card-policy | root | card (index or UUID), policy (none: as they ask) | card: Card, as it is now |
| card-cordon | root | card, reason (may be left out) | card: Card, as it is now |
| card-uncordon | root | card | card: Card, as it is now |
| status | anyone | - | Status's keys beside `ok` |
| metrics | anyone | - | CardFigures and TenantFigures rows, as card and tenant; node: NodeFigures |
| history | anyone | name (may be empty), since (epoch), after (a number) | HistoryEvent rows |

`marker` is "strong" or "weak"; `given` is "none", "shared" or "whole".
"""

from __future__ import annotations

from typing import Final

from gpushare.protocol.cards import Card, CardLink, ForeignProcess
from gpushare.protocol.daemon import HistoryEvent, Status
from gpushare.protocol.opened import MountRow, Opened
from gpushare.protocol.packets import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    ProtocolError,
    decode,
    encode,
)
from gpushare.protocol.tenants import (
    CardSpent,
    Held,
    ProcessCard,
    Tenant,
    TenantCard,
    TenantProcess,
)
from gpushare.protocol.why import Denied, Why, WhyCard, WhyHeld, WhyLack, WhyProcess

__all__ = [
    "ACK_SECONDS",
    "CODE_ERROR",
    "CODE_FORBIDDEN",
    "CODE_REFUSED",
    "CODE_UNKNOWN",
    "CODE_USAGE",
    "HISTORY_ROWS",
    "KICK_MOST_SECONDS",
    "KICK_SIGNALS",
    "MAX_REPLY_BYTES",
    "MAX_REQUEST_BYTES",
    "REPLY_SECONDS",
    "RESET_ALL",
    "SET_FIELDS",
    "START_SECONDS",
    "VERSION",
    "Card",
    "CardLink",
    "CardSpent",
    "Denied",
    "ForeignProcess",
    "Held",
    "HistoryEvent",
    "MountRow",
    "Opened",
    "ProcessCard",
    "ProtocolError",
    "Status",
    "Tenant",
    "TenantCard",
    "TenantProcess",
    "Why",
    "WhyCard",
    "WhyHeld",
    "WhyLack",
    "WhyProcess",
    "decode",
    "encode",
]

VERSION: Final = 1
ACK_SECONDS: Final = 1.0
START_SECONDS: Final = 30.0
REPLY_SECONDS: Final = 10.0

HISTORY_ROWS: Final = 500  # the most in one answer; fewer: there are no more

SET_FIELDS: Final = (
    "memory",
    "memory_limit",
    "cores",
    "policy",
    "weight",
    "priority",
    "class",
    "on_over",
)
RESET_ALL: Final = "all"

#: What a container's first process may be sent by `kick`; KILL ends all of them at once.
KICK_SIGNALS: Final = ("TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "KILL")
KICK_MOST_SECONDS: Final = 3600

CODE_REFUSED: Final = "refused"  # the quota cannot be given: no room, bad key, bad value
CODE_USAGE: Final = "usage"  # the request itself is malformed
CODE_UNKNOWN: Final = "unknown"  # no such tenant, or several: `candidates` lists their names
CODE_FORBIDDEN: Final = "forbidden"  # not for this caller
CODE_ERROR: Final = "error"  # the daemon could not do it
