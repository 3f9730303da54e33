# SPDX-License-Identifier: Apache-2.0
"""JSON of a file that somebody else writes too: read strictly, and written in the file's layout."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from gpushare.engines.config_files import BadConfiguration

_INDENT: Final = re.compile(r"\n([ \t]+)\S")


def parse(text: str) -> dict[str, Any]:
    """Return the object in `text`; BadConfiguration for other JSON, or a duplicate key."""
    try:
        loaded = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        is_after = error.msg == "Extra data"
        reason = "text after the object, such as a second }" if is_after else error.msg
        raise BadConfiguration(reason, error.lineno) from error
    if not isinstance(loaded, dict):
        raise BadConfiguration("is not a JSON object", 1)
    return loaded


def dump(content: dict[str, Any], like: str) -> str:
    """Return `content` as JSON with the indentation of the text `like`, and its last line break."""
    text = like.strip()
    found = _INDENT.search(like)
    indent = (found[1] if found else "    ") if "\n" in text or not text else None
    end = like[len(like.rstrip()) :] if text else "\n"
    return json.dumps(content, indent=indent, ensure_ascii=like.isascii()) + end


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadConfiguration(f'duplicate key "{twice}"')
    return members
