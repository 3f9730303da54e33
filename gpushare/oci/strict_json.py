# SPDX-License-Identifier: Apache-2.0
"""JSON as OCI and CDI files need it read: whole, unambiguous and of bounded depth.

Python's json takes a key that is there twice (the last wins, where Go and C readers may differ),
NaN and 1e400 (infinity), and recurses as deep as the text says.
"""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate
from typing import Any, Final

MAX_DEPTH: Final = 64

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
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
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno} column {error.colno}") from error
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 - what callers of a parser expect
    return value


def _depth(data: bytes) -> int:
    steps = (_STEP.get(byte, 0) for byte in re.sub(rb"[^][{}]+", b"", _STRING.sub(b"", data)))
    return max(accumulate(steps), default=0)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {json.dumps(twice)[:80]} is there twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is out of range")
    return value
