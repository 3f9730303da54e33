# SPDX-License-Identifier: Apache-2.0
"""What the driver's libraries make in /dev and /dev/shm, in a program that root starts.

The program has a /dev of its own without the driver's nodes, and the kernel module's parameters as
they would be with another NVreg_ModifyDeviceFiles: nothing of the machine changes.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .driver import DriverPaths
from .process import child, environment, run
from .report import NotMeasured, ReportRow

PARAMS = Path("/proc/driver/nvidia/params")
MARK = "-- made --"
#: "$1" the parameters or nothing, then the program.
SCRIPT = f"""
params=$1
shift
[ -z "$params" ] || mount --bind "$params" {PARAMS}
mount -t tmpfs -o mode=755 none /mnt
for node in full null random tty urandom zero; do
    : >/mnt/$node
    mount --bind /dev/$node /mnt/$node
done
mkdir /mnt/shm
ln -s /proc/self/fd /mnt/fd
mount --move /mnt /dev
"$@" >/dev/null 2>&1 || echo "the program ended with $?"
echo "{MARK}"
find /dev -name 'nvidia*' -o -path '/dev/shm/*' | sort
"""


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    if os.geteuid() != 0:
        raise NotMeasured("a /dev of its own needs root")
    if not PARAMS.exists():
        yield _made(driver, "the kernel module shows no parameters", "")
        return
    for value in (0, 1):
        with tempfile.NamedTemporaryFile("w") as file:
            pattern = r"^ModifyDeviceFiles: \d+$"
            changed = f"ModifyDeviceFiles: {value}"
            file.write(re.sub(pattern, changed, PARAMS.read_text(), flags=re.MULTILINE))
            file.flush()
            yield _made(driver, changed, file.name)


def _made(driver: DriverPaths, name: str, params: str) -> ReportRow:
    argv = ["unshare", "--mount", "sh", "-ec", SCRIPT, "sh", params]
    done = run([*argv, *child("facts", str(driver.cuda))], environment(driver.env))
    said, mark, made = done.stdout.partition(f"{MARK}\n")
    if not mark:
        raise NotMeasured(done.stderr.strip() or "a private mount namespace")
    return ReportRow(f"{name}: made", " ".join(made.split()) or "nothing", note=said.strip())
