# SPDX-License-Identifier: Apache-2.0
"""Reads files, and JSON of OCI and CDI, of untrusted size, depth and content; replaces files.

JSON is read whole, unambiguously and to a bounded depth. Python's json accepts duplicate keys (the
last one wins, where Go and C readers may differ), NaN, 1e400 (infinity) and half of a surrogate
pair (which no other reader keeps: Go makes it U+FFFD, yajl a question mark), and recurses without a
limit. A hostile text cannot keep the reader busy: the time is proportional to its length.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

_CHUNK: Final = 64 << 10


def read_at_most(fd: int, limit: int) -> bytes:
    """Return the rest of the file at `fd`, at most `limit` bytes; OSError as read(2).

    A file object would allocate `limit` bytes at once, however short the file is.
    """
    chunks = []
    while limit and (chunk := os.read(fd, min(limit, _CHUNK))):
        chunks.append(chunk)
        limit -= len(chunk)
    return b"".join(chunks)


def replace_file(  # noqa: PLR0913 - as much as a file has
    path: str | Path,
    data: bytes,
    mode: int,
    *,
    owner: tuple[int, int] | None = None,
    dir_fd: int | None = None,
    synced: bool = False,
) -> None:
    """Put a file with `data` at `path` by one rename, with `mode` whatever the umask; OSError.

    A reader sees the one or the other, whole. `path` is relative to `dir_fd`, if there is one.
    """
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")  # noqa: PTH118 - of a fd
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(draft, flags, 0o600, dir_fd=dir_fd)
    try:
        with os.fdopen(fd, "wb", buffering=0):
            rest = memoryview(data)
            while rest:  # write(2) may write less than requested, on a full disk without an error
                rest = rest[os.write(fd, rest) :]
            if owner is not None:
                os.fchown(fd, *owner)
            os.fchmod(fd, mode)
            if synced:
                os.fsync(fd)
        os.rename(draft, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        os.unlink(draft, dir_fd=dir_fd)
        raise


MAX_DEPTH: Final = 64

_MOST_DIGITS: Final = 1000
# One without an end is one up to the end of the text: no quote within it is tried again.
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_FOLD: Final = bytes.maketrans(b"[{]}", b"(())")
_OTHERS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEP: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the object that `data` is; ValueError says in a few words why it is none."""
    if _depth(data) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
        if _SURROGATE.search(data):
            _refuse_half_pairs(value)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno} column {error.colno}") from error
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 - what callers of a parser expect
    return value


def _depth(data: bytes) -> int:
    """Return how deep the brackets of `data` go, as far as MAX_DEPTH and one more."""
    left = _STRING.sub(b"", data).translate(_FOLD, _OTHERS)
    for depth in range(MAX_DEPTH + 1):
        if not left:
            return depth
        # All that enclose nothing: one level of each.
        rest = left.replace(b"()", b"")
        if len(rest) == len(left):
            return _depth_of_unbalanced(data)
        left = rest
    return MAX_DEPTH + 1


def _depth_of_unbalanced(data: bytes) -> int:
    steps = (_STEP.get(byte, 0) for byte in re.sub(rb"[^][{}]+", b"", _STRING.sub(b"", data)))
    return max(accumulate(steps), default=0)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {json.dumps(twice)[:80]} is a duplicate")
    return members


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is out of range")
    return value


def _bounded(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"the number {text[:20]}... has over {_MOST_DIGITS} digits")
    return int(text)


def _refuse_half_pairs(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise ValueError(f"\\u{code:04x} is half of a surrogate pair") from error
