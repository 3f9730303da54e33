# SPDX-License-Identifier: Apache-2.0
"""What the driver's libraries make in /dev and /dev/shm, in a program that root starts.

The program has a /dev of its own without the driver's nodes, and the kernel module's parameters as
they would be with another NVreg_ModifyDeviceFiles: nothing of the machine changes.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .driver import DriverPaths
from .mps import USER
from .process import child, environment, run
from .report import NotMeasured, ReportRow

PARAMS = Path("/proc/driver/nvidia/params")
MARK = "-- made --"
SHARED = "cuda_injection_path_shm"
#: "$1" the parameters or nothing, "$2" the owner of a file in /dev/shm or nothing, the program.
SCRIPT = f"""
params=$1 owner=$2
shift 2
[ -z "$params" ] || mount --bind "$params" {PARAMS}
mount -t tmpfs -o mode=755 none /mnt
for node in full null random tty urandom zero; do
    : >/mnt/$node
    mount --bind /dev/$node /mnt/$node
done
mkdir -m 1777 /mnt/shm
[ -z "$owner" ] || {{ : >/mnt/shm/{SHARED} && chown "$owner" /mnt/shm/{SHARED}; }}
ln -s /proc/self/fd /mnt/fd
mount --move /mnt /dev
printf 'begin\\nopened\\n' | "$@" 2>/dev/null || :
echo "{MARK}"
find /dev -name 'nvidia*' -printf '%p\\n' -o -path '/dev/shm/*' -printf '%p (%M %u)\\n' | sort
"""


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    if os.geteuid() != 0:
        raise NotMeasured("a /dev of its own needs root")
    yield from _made(driver, f"{SHARED} is another user's", "", str(USER))
    if not PARAMS.exists():
        yield from _made(driver, "the kernel module shows no parameters", "")
        return
    for value in (0, 1):
        with tempfile.NamedTemporaryFile("w") as file:
            pattern = r"^ModifyDeviceFiles: \d+$"
            changed = f"ModifyDeviceFiles: {value}"
            file.write(re.sub(pattern, changed, PARAMS.read_text(), flags=re.MULTILINE))
            file.flush()
            yield from _made(driver, changed, file.name)


def _made(driver: DriverPaths, name: str, params: str, owner: str = "") -> Iterator[ReportRow]:
    argv = ["unshare", "--mount", "sh", "-ec", SCRIPT, "sh", params, owner]
    program = child("tried", str(driver.cuda), driver.uuid)
    done = run([*argv, *program], environment(driver.env))
    said, mark, made = done.stdout.partition(f"{MARK}\n")
    if not mark:
        raise NotMeasured(done.stderr.strip() or "a private mount namespace")
    *_, begun, last = map(json.loads, said.splitlines())
    files = ", ".join(made.splitlines()) or "nothing"
    yield ReportRow(f"{name}: made", files, note=begun.get("name", ""))
    yield ReportRow(f"{name}: open or mapped", ", ".join(last["files"]) or "nothing")
