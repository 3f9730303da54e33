# SPDX-License-Identifier: Apache-2.0
"""The bearer token that whoever asks over a network has to show (RFC 6750)."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

from gpushare.errors import UserError

_LEAST: Final = 16
_MOST: Final = 4096


class BadToken(UserError):
    """The file has no token that could keep anybody out."""


def read(file: Path) -> bytes:
    """Return the token in `file`, read anew for each request so that it can be changed."""
    try:
        with file.open("rb") as opened:
            mode = file.stat().st_mode
            content = opened.read(_MOST + 1).strip()
    except OSError as error:
        raise BadToken(f"--token-file {file}: {error.strerror}") from error
    if mode & 0o004:
        raise BadToken(f"--token-file {file} can be read by everybody; chmod 640 {file}")
    if not _LEAST <= len(content) <= _MOST or not content.isascii() or b" " in content:
        raise BadToken(
            f"--token-file {file} is to have one word of {_LEAST} or more ASCII letters; make one: "
            f"openssl rand -hex 32 > {file}"
        )
    return content


def is_shown(authorization: str, token: bytes) -> bool:
    """Whether the header `authorization` shows `token`; takes as long for every wrong one."""
    scheme, _, shown = authorization.partition(" ")
    wanted = hmac.compare_digest(shown.strip().encode("utf-8", "surrogateescape"), token)
    return scheme.lower() == "bearer" and wanted
