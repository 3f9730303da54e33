# SPDX-License-Identifier: Apache-2.0
"""Packages of Debian that are pinned by their content, and unpacked without being installed."""

from __future__ import annotations

import hashlib
import io
import tarfile
import urllib.request
from collections.abc import Iterator

import apply

POOL = "http://deb.debian.org/debian/pool/"
SECONDS = 20
_ARCHIVE_MAGIC = b"!<arch>\n"
_MEMBER_HEADER_BYTES = 60


def download(url: str, sha256: str) -> bytes:
    """Return a package; StepError if it is not there, or has another content."""
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:  # noqa: S310 - of POOL
            content = bytes(answer.read())
    except OSError as error:
        raise apply.StepError(f"{url}: {error}") from error
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise apply.StepError(f"{url}: SHA-256 {found} instead of {sha256}: not unpacked")
    return content


def files(package: bytes) -> tarfile.TarFile:
    """Return the archive of a package's files."""
    (data,) = (part for title, part in _members(package) if title.startswith("data.tar"))
    return tarfile.open(fileobj=io.BytesIO(data))


def _members(package: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each part of an ar archive, which a Debian package is."""
    assert package.startswith(_ARCHIVE_MAGIC)
    at = len(_ARCHIVE_MAGIC)
    while at < len(package):
        header = package[at : at + _MEMBER_HEADER_BYTES]
        size = int(header[48:58])
        at += _MEMBER_HEADER_BYTES
        yield header[:16].decode().strip(), package[at : at + size]
        at += size + size % 2
