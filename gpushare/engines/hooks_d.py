# SPDX-License-Identifier: Apache-2.0
"""The file by which podman runs our hook for every container that bears our annotations.

It edits nothing: it sees to it that such a container goes through the launcher at all.
Source: oci-hooks(5), schema 1.0.0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.engines import json_text

HOOK: Final = "gpushare-hook"
_TIMEOUT_SECONDS: Final = 60
_PATH: Final = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class HookFile:
    """The whole file is ours: what it said before is not kept within it."""

    def register(self, text: str, launcher: Path, *, default: bool) -> str:  # noqa: ARG002
        """Return the file for the hook beside `launcher`."""
        return json.dumps(_content(launcher.with_name(HOOK)), indent="\t") + "\n"

    def unregister(self, text: str, original: str) -> str:  # noqa: ARG002
        """Return `original`: nothing of ours can be left in it."""
        return original

    def registered(self, text: str) -> Path | None:
        """Return the launcher beside the hook that `text` names."""
        hook = json_text.parse(text).get("hook", {}) if text.strip() else {}
        return Path(str(hook["path"])).with_name("gpushare-runtime") if hook.get("path") else None

    def is_default(self, text: str) -> bool:  # noqa: ARG002
        """Return False: a hook is of every runtime."""
        return False

    def remarks(self, text: str) -> list[str]:  # noqa: ARG002
        """Return nothing: there is nothing to know."""
        return []


def _content(hook: Path) -> dict[str, Any]:
    return {
        "version": "1.0.0",
        "hook": {
            "path": str(hook),
            "args": [HOOK, "createRuntime"],
            "env": [_PATH],
            "timeout": _TIMEOUT_SECONDS,
        },
        "when": {"annotations": {r"^gpushare\.io/.*$": ".*"}},
        "stages": ["createRuntime"],
    }
