# SPDX-License-Identifier: Apache-2.0
"""Becomes a command in the mount namespace that `gpushare run` would give it, without the daemon.

    python -m tools.gpu.child.enter MOUNTS COMMAND [ARGUMENT...]

MOUNTS is JSON, rows as of gpushare.protocol.MountRow. Without root it takes a user namespace, where
the kernel gives one. Exit status 125 where the namespace cannot be made, 126 or 127 where the
command cannot be run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gpushare.host import mounts

CLONE_NEWUSER = 0x10000000


def main() -> int:
    rows, *command = sys.argv[1:]
    try:
        if os.geteuid() != 0:
            _become_mounter()
        mounts.enter_new_namespace(json.loads(rows), os.environ.get("LD_LIBRARY_PATH", ""))
    except (OSError, mounts.NamespaceError) as error:
        sys.stderr.write(f"no private mounts: {error}\n")
        return 125
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def _become_mounter() -> None:
    """Own a user namespace in which this user keeps its ids and may mount."""
    uid, gid = os.geteuid(), os.getegid()
    mounts.unshare(CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


if __name__ == "__main__":
    sys.exit(main())
