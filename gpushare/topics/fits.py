# SPDX-License-Identifier: Apache-2.0
"""The rules by which an image is judged (gpushare/compat), as entries."""

from __future__ import annotations

from typing import Final

from gpushare.compat.judge import RULES
from gpushare.topics.entry import Entry

GROUP: Final = "Rules of compat"
_SEE: Final = ("compat", "driver-and-runtime", "docs/reference/compatibility.md")
_TEXT: Final = (
    "A rule by which `gpushare compat IMAGE`, and gpushared when a container with a GPU is made, "
    "judge what an image brings of CUDA. What comes of it at a create the node's `compat` says: "
    "it is noted (warn, the default) or refused (block)."
)
_DO: Final = (
    "- `gpushare compat IMAGE` says it with the figures, and what would help; `gpushare inspect "
    "NAME` for a container that was made."
)


def entries() -> list[Entry]:
    """Return an entry for each rule, by its id."""
    parts = {"text": _TEXT, "do": _DO}
    return [Entry(name, GROUP, said, see=_SEE, parts=parts) for name, said in RULES.items()]
