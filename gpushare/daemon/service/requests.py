# SPDX-License-Identifier: Apache-2.0
"""The operations of the control socket: which there are, and what a refused caller is told.

gpushare/protocol has the table. An operation runs on the decide thread where it changes
something, on the read thread otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpushare import protocol
from gpushare.daemon.life.bind import NoSuchTenant
from gpushare.daemon.service.operations import cards, daemon, life, tenants
from gpushare.daemon.service.request import BadRequest, Forbidden, Operation, Request, UnknownTenant
from gpushare.errors import UserError
from gpushare.oci.cdi import CdiError
from gpushare.oci.spec import SpecError
from gpushare.quota import QuotaError

OPERATIONS: Final[Mapping[str, Operation]] = {
    **life.OPERATIONS,
    **tenants.OPERATIONS,
    **cards.OPERATIONS,
    **daemon.OPERATIONS,
}


def operation(request: Request) -> Operation:
    """Return what `request` asks for; BadRequest where there is no such op, Forbidden."""
    request.refuse_tenants()
    op = request.fields.get("op")
    found = OPERATIONS.get(op) if isinstance(op, str) else None
    if found is None:
        raise BadRequest(f"op is none of {', '.join(OPERATIONS)}")
    return found


def refusal(error: Exception) -> dict[str, Any] | None:
    """Return the final packet for an error that the caller is told, None for a fault of ours."""
    if isinstance(error, UnknownTenant):
        return _no(protocol.CODE_UNKNOWN, error, candidates=error.candidates)
    if isinstance(error, Forbidden):
        return _no(protocol.CODE_FORBIDDEN, error)
    if isinstance(error, BadRequest | protocol.ProtocolError):
        return _no(protocol.CODE_USAGE, error)
    if isinstance(error, NoSuchTenant):
        return _no(protocol.CODE_UNKNOWN, error, candidates=[])
    if isinstance(error, UserError | QuotaError):
        return _no(protocol.CODE_REFUSED, error)
    # A spec that cannot be read says nothing of what was asked: who only has an image's word for a
    # GPU starts without one (runtime/launcher.c, judge).
    if isinstance(error, SpecError | CdiError | OSError):
        return _no(protocol.CODE_ERROR, error)
    return None


def _no(code: str, error: Exception, **more: Any) -> dict[str, Any]:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or 'gpushared'}: {error.strerror}"
    return {"ok": False, "code": code, "error": text[:4000], **more}
