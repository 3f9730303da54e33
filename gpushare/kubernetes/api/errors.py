# SPDX-License-Identifier: Apache-2.0
"""The failures of a request to the API server, one class for each thing that a caller does."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from gpushare.errors import UserError


class ApiError(UserError):
    """The API server answered, and refused; `status` is HTTP's, `reason` that of the Status."""

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = 0.0  # seconds to wait at least, as the server asks


class ApiUnreachable(ApiError):
    """No complete answer in time: a network, TLS or server fault, which may pass."""


class ApiNotFound(ApiError):
    """There is no such object, or the server does not know its kind."""


class ApiConflict(ApiError):
    """The object has changed since it was read: read it again."""


class ApiExists(ApiError):
    """An object of this name exists already."""


class ApiExpired(ApiError):
    """The resourceVersion is too old for the server: list again."""


class ApiForbidden(ApiError):
    """The credentials are missing, invalid, or lack a permission; the message has the fix."""


_CLASSES: Final[dict[int, type[ApiError]]] = {
    HTTPStatus.UNAUTHORIZED: ApiForbidden,
    HTTPStatus.FORBIDDEN: ApiForbidden,
    HTTPStatus.NOT_FOUND: ApiNotFound,
    HTTPStatus.CONFLICT: ApiConflict,
    HTTPStatus.GONE: ApiExpired,
}
_FIXES: Final[dict[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "the API server does not accept the token or the certificate",
    HTTPStatus.FORBIDDEN: "apply deploy/kubernetes/rbac.yaml",
}
_MESSAGE_CHARACTERS: Final = 500


def refusal(request: str, status: int, body: Any) -> ApiError:
    """Return the exception for an answer `status` to `request` (`GET /api/v1/nodes/n`).

    `body` is the decoded answer, a Status of `meta/v1` unless a proxy wrote it. Source: Kubernetes
    API conventions, "Response Status Kind".
    """
    kind = body if isinstance(body, dict) and body.get("kind") == "Status" else {}
    reason = str(kind.get("reason") or "")
    said = str(kind.get("message") or body or "no reason given")[:_MESSAGE_CHARACTERS]
    fix = _FIXES.get(status)
    message = f"{request}: {status} {said}{f'. Fix: {fix}' if fix else ''}"
    found = ApiExists if reason == "AlreadyExists" else _CLASSES.get(status, ApiError)
    return found(message, status, reason)
