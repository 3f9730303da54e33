# SPDX-License-Identifier: Apache-2.0
"""Every file that gpushare makes on a machine has the owner and the mode of the table in
docs/explanation/hardening.md, or narrower ones; and no other user can lock or read its stores.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushare.install import InstallSource
from gpushare.verify import image

from .own_machine import ROOT, OwnMachine
from .waiting import wait_until

PROGRAMS = Path(sys.executable).parent
TABLE = ROOT / "docs/explanation/hardening.md"
#: What belongs to gpushare alone. In other folders it makes single files, which setup lists.
FOLDERS = (
    "/run/gpushare",
    "/var/lib/gpushare",
    "/usr/local/lib/gpushare",
    "/opt/gpushare",
    "/etc/gpushare",
)
SINGLE = ("/usr/local/bin/gpushare", "/usr/local/sbin/gpushare-undo", "/etc/cdi/gpushare.json")
# It reads commands from its stdin, which stays open.
START = "docker run -d -i --runtime gpushare -e GPUSHARE_MEMORY=2GiB --network none"
PROBE = "gpushare-probe gpushare-probe info"
STORES = ("ledger", "copies", "overrides.json", "events.db", "lock", "contexts.json")
# Opens every file of the folders as user `argv[1]`, and takes each kind of lock that it can: whole
# files (flock(2)), and all bytes for reading, or else for writing (fcntl(2)).
LOCKER = """
import fcntl, os, sys, time
uid = int(sys.argv[1])
names = [os.path.join(folder, name) for top in sys.argv[2:]
         for folder, _, files in os.walk(top) for name in files]
os.setgid(uid)
os.setuid(uid)
opened = []
for name in names:
    for flags, lock in ((os.O_RDONLY, fcntl.LOCK_SH), (os.O_WRONLY, fcntl.LOCK_EX)):
        try:
            fd = os.open(name, flags | os.O_NONBLOCK)
        except OSError:
            continue
        opened.append((name, fd))
        for take in (fcntl.flock, fcntl.lockf):
            try:
                take(fd, lock | fcntl.LOCK_NB)
            except OSError:
                pass
print("opened", *sorted({name for name, _ in opened}), flush=True)
time.sleep(3600)
"""
NOBODY = 65534


@dataclass(frozen=True)
class FileModeRow:
    """One line of the table: a pattern, its owner, and the widest mode."""

    pattern: str
    owner: str
    mode: int


def rows() -> list[FileModeRow]:
    """Return the lines of the table."""
    found = re.findall(r"^\| `(/[^`]+)` \| (\w+) \| ([0-7]{4}) \|", TABLE.read_text(), re.MULTILINE)
    return [FileModeRow(pattern, owner, int(mode, 8)) for pattern, owner, mode in found]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnMachine]:
    """A machine on which each part of gpushare has written what it writes."""
    made = OwnMachine(tmp_path_factory.mktemp("modes"))
    try:
        made.start_dockerd()
        probe = InstallSource.of_package().libraries / "gpushare-probe"
        made.run("docker load", image.build(probe))
        made.run(f"{PROGRAMS}/gpushare setup --simulate h200 --runtime docker")
        made.start_gpushared([str(PROGRAMS / "gpushared")])
        made.run("kill -HUP $(cat /run/docker.pid)")
        wait_until(lambda: "gpushare" in made.run("docker info --format '{{.Runtimes}}'"))
        made.run(f"{START} --read-only --name held {PROBE}")
        made.run(f"{PROGRAMS}/gpushare set held --memory 3GiB")
        made.run(f"{PROGRAMS}/gpushare pause held --reason test")
        made.run(f"{PROGRAMS}/gpushare card policy 0 burst-share")
        run = shlex.join(["/usr/local/lib/gpushare/current/lib/gpushare-probe", "info"])
        made.run(f"{PROGRAMS}/gpushare run --memory 2GiB -- {run}")
        made.run(f"{PROGRAMS}/gpushare history > /dev/null")
        yield made
    finally:
        made.close()


def test_no_file_is_wider_than_the_table_says(machine: OwnMachine) -> None:
    table = rows()
    listed = machine.run(
        f"find {' '.join(FOLDERS)} {' '.join(SINGLE)} -printf '%y %m %u:%g %p\\n' 2>/dev/null; true"
    )
    wrong = []
    for line in listed.splitlines():
        kind, mode, owner, path = line.split(" ", 3)
        row = next((row for row in table if fnmatch.fnmatchcase(path, row.pattern)), None)
        if row is None:
            wrong.append(f"{path} ({mode}) is not in the table")
        elif kind != "l" and int(mode, 8) & ~row.mode:
            wrong.append(f"{path} has mode {mode}, and the table says {row.mode:04o}")
        elif owner != f"{row.owner}:root":
            wrong.append(f"{path} is owned by {owner}, and the table says {row.owner}")
    assert not wrong
    names = {line.rpartition("/")[2] for line in listed.splitlines()}
    assert {*STORES, "grant", "status", "control.sock", "scheduler.sock"} <= names


def lock_all(machine: OwnMachine, uid: int) -> list[str]:
    """Have a process of `uid` hold every lock that it can take; return the files it opened."""
    log = machine.folder / f"locker-{uid}.log"
    argv = [sys.executable, "-c", LOCKER, str(uid), "/run/gpushare", "/var/lib/gpushare"]
    machine.start(f"locker-{uid}", argv, lambda: "opened" in log.read_text())
    return log.read_text().split()[1:]


def test_locks_of_another_user_reach_no_store(machine: OwnMachine) -> None:
    opened = lock_all(machine, NOBODY)
    # Beside the libraries of shares, which anyone may load; the last one is a program.
    assert [name for name in opened if "/tenants/.tree-" not in name] == [
        "/var/lib/gpushare/simulator/cdi.json",
        "/var/lib/gpushare/simulator/device",
        "/var/lib/gpushare/simulator/nvidia-cuda-mps-control",
    ]
    machine.run(f"{START} --name beside {PROBE}")
    machine.run("docker rm -f beside")


def test_no_lock_stops_a_start_or_a_freeze(machine: OwnMachine) -> None:
    """Not even root's: the history waits, and nothing waits for the history."""
    opened = lock_all(machine, 0)
    assert {Path(name).name for name in opened} >= {"events.db", "events.db-shm", "events.db-wal"}
    machine.run(f"{START} --name late {PROBE}")
    machine.run(f"{PROGRAMS}/gpushare pause late --reason locked")
    assert '"by": "operator"' in machine.run(f"{PROGRAMS}/gpushare inspect late --json")
    machine.run(f"{PROGRAMS}/gpushare resume late")
    machine.run("docker rm -f late")
