# SPDX-License-Identifier: Apache-2.0
"""Which files differ from what main's upstream has: `./dev test --fast` checks those."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .command import ROOT

#: The first that there is; on a main without an upstream that leaves what is not committed.
UPSTREAMS = ("main@{upstream}", "origin/main", "main")


def changed(root: Path = ROOT) -> set[Path] | None:
    """Return the files that differ from the merge base, also those deleted and not yet added.

    None: git does not know, so all of them may.
    """
    for upstream in UPSTREAMS:
        base = _git(root, "merge-base", "HEAD", upstream)
        if base:
            break
    else:
        return None
    differ = _git(root, "diff", "--name-only", "--no-renames", "-z", base.strip(), "--")
    added = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    if differ is None or added is None:
        return None
    return {Path(name) for name in (differ + added).split("\0") if name}


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=root, check=False, capture_output=True, text=True
        )
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
