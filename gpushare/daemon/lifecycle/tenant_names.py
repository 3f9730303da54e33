# SPDX-License-Identifier: Apache-2.0
"""What a user calls a tenant: its name, an end of it, or the start of its ID."""

from __future__ import annotations

from collections.abc import Sequence

from gpushare.daemon.lifecycle import bind
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.quota.errors import quoted


class TenantNotFound(Exception):
    """No tenant or card, or several, by that name."""

    def __init__(self, message: str, candidates: Sequence[str]) -> None:
        super().__init__(message)
        self.candidates = list(candidates)


def find_tenant(name: str, state: DaemonState) -> TenantRecord:
    """Return the one tenant that `name` means: its name, an end of it, or the start of its id.

    Users choose names, so no kind of match takes precedence over another: a name that is also the
    id of another tenant, or the end of its name, is ambiguous. If there is no match, it is the one
    tenant whose name, or an end of it, begins so.
    """
    records = bind.with_names(list(state.ledger.entries.values()), state)
    by_id = [record for record in records if name in {record.id, record.key}]
    by_id = by_id or [record for record in records if record.id.startswith(name)]
    by_name = [
        record for record in records if record.name == name or record.name.endswith(f"/{name}")
    ]
    found = list({record.key: record for record in (*by_id, *by_name)}.values())
    is_start = not found
    if is_start:
        found = [record for record in records if f"/{name}" in f"/{record.name}"]
    if len(found) == 1:
        return found[0]
    if not found:
        known = [record.title for record in records][:16]
        raise TenantNotFound(f"no container is named {quoted(name)}; see gpushare ps -a", known)
    titles = [record.name or record.id for record in found]
    what = "is the start of the names" if is_start else "is the name"
    if by_id and by_name:
        text = f"{quoted(name)} is the name of one container and the ID of another"
    elif len(set(titles)) < len(titles) or name in titles:
        text = f"{quoted(name)} {what} of several containers"
    else:
        raise TenantNotFound(f"{quoted(name)} {what} of several containers", titles[:16])
    listed = [f"{one.title} (ID {one.id[:12]}, key {one.key})" for one in found[:16]]
    raise TenantNotFound(f"{text}: {', '.join(listed)}. Use a key", [one.key for one in found[:16]])
