# SPDX-License-Identifier: Apache-2.0
"""The ledger: what is in it survives the daemon, and nothing else does."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.store.ledger import Entry, Holding, Ledger, LedgerError

from .fakes import GIB, entry


def opened(folder: Path, boot: str = "boot-1") -> Ledger:
    return Ledger(folder / "ledger.db", boot)


def reopened(ledger: Ledger, boot: str = "boot-1") -> Ledger:
    ledger.close()
    return Ledger(ledger.file, boot)


def full_entry() -> Entry:
    return Entry(
        key="ab" * 8,
        state="reserved",
        id="c0ffee",
        name="train",
        engine="docker",
        bundle="/run/bundle",
        uid=7,
        policy="fixed-share",
        isolation="interposer",
        why="",
        quota={"memory": "4GiB env"},
        created=12.5,
        expires=99.5,
        notes=('env GPUSHARE_COUNT "4" was not taken',),
        namespace="team",
        sandbox="5a4d",
        container="train",
        holdings=(
            Holding("GPU-0000", 4 * GIB, 30, 30),
            Holding("GPU-1000", 4 * GIB, 30, 30),
        ),
    )


def test_an_entry_comes_back_as_it_was(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.add(full_entry())
    assert reopened(ledger).entries == {full_entry().key: full_entry()}


def test_what_is_published_is_what_is_stored(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.add(full_entry())
    key = full_entry().key
    ledger.bind(key, pid=4, starttime=5, cgroup=":/x")
    ledger.rename(key, "other", "podman")
    resized = [
        replace(
            holding,
            memory_bytes=6 * GIB,
            memory_limit_bytes=8 * GIB,
            cores=40,
            reserved_cores=0,
        )
        for holding in full_entry().holdings
    ]
    wanted = replace(
        ledger.entries[key],
        holdings=tuple(resized),
        quota={"memory": "6GiB operator"},
        policy="native-burst-share",
        weight=3,
        priority=0,
        class_="online",
    )
    ledger.resize(wanted)
    ledger.add(entry("1" * 16))
    ledger.release("1" * 16)
    published = dict(ledger.entries)
    assert published[key] == replace(
        full_entry(),
        state="bound",
        pid=4,
        starttime=5,
        cgroup=":/x",
        name="other",
        engine="podman",
        quota={"memory": "6GiB operator"},
        policy="native-burst-share",
        weight=3,
        priority=0,
        class_="online",
        holdings=tuple(resized),
    )
    assert reopened(ledger).entries == published


def test_the_same_key_again_replaces_the_entry(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.add(full_entry())
    again = replace(full_entry(), holdings=full_entry().holdings[:1])
    ledger.add(again)
    assert reopened(ledger).entries == {again.key: again}


def test_a_release_of_nothing_is_fine(tmp_path: Path) -> None:
    opened(tmp_path).release("0" * 16)


def test_readers_keep_what_they_looked_at(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    before = ledger.entries
    ledger.add(entry())
    assert not before
    with pytest.raises(TypeError):
        ledger.entries["x"] = entry()  # type: ignore[index]


def test_another_boot_finds_it_empty(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.add(full_entry())
    second = reopened(ledger, "boot-2")
    assert not second.entries
    assert not reopened(second, "boot-2").entries


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    broken = replace(entry(), holdings=(Holding("GPU-0000", 0),))
    with pytest.raises(sqlite3.IntegrityError):
        ledger.add(broken)
    assert not ledger.entries
    assert not reopened(ledger).entries


@pytest.mark.parametrize("damage", [b"not a database at all, but long enough" * 100, b""])
def test_a_damaged_store_is_not_taken_for_an_empty_one(tmp_path: Path, damage: bytes) -> None:
    ledger = opened(tmp_path)
    for number in range(200):
        ledger.add(entry(f"{number:016x}"))
    ledger.close()
    content = bytearray(ledger.file.read_bytes())
    if damage:
        ledger.file.write_bytes(damage)
    else:
        content[4096 * 2 : 4096 * 4] = os.urandom(4096 * 2)
        ledger.file.write_bytes(content)
    with pytest.raises(LedgerError, match=r"damaged .* Stop the containers that use a GPU"):
        opened(tmp_path)


def test_a_store_of_another_format_is_not_read(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.close()
    with sqlite3.connect(ledger.file) as store:
        store.execute("UPDATE about SET format = 99")
    store.close()
    with pytest.raises(LedgerError, match="format 99"):
        opened(tmp_path)


# Kills itself at the statement whose number it is given; exits 0 where there are fewer.
KILLED = textwrap.dedent(
    """
    import os, signal, sqlite3, sys
    from dataclasses import replace
    from pathlib import Path
    from gpushare.daemon.store.ledger import Entry, Holding, Ledger

    left = int(sys.argv[2])
    ready = False

    class Killed(sqlite3.Connection):
        def _step(self):
            global left
            if not ready:
                return
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        def execute(self, *arguments):
            self._step()
            done = super().execute(*arguments)
            self._step()
            return done
        def executemany(self, *arguments):
            self._step()
            done = super().executemany(*arguments)
            self._step()
            return done
        def commit(self):
            self._step()
            super().commit()
            self._step()
        def __exit__(self, *error):
            self._step()
            done = super().__exit__(*error)
            self._step()
            return done

    connect = sqlite3.connect
    sqlite3.connect = lambda *a, **k: connect(*a, factory=Killed, **k)
    ledger = Ledger(Path(sys.argv[1]), "boot-1")
    ready = True
    holdings = (Holding("GPU-0000", 1 << 32), Holding("GPU-1000", 1 << 32))
    def say(text):
        os.write(1, text.encode() + b"\\n")
    ledger.add(Entry(key="a" * 16, state="reserved", id="a", holdings=holdings))
    say("added")
    ledger.bind("a" * 16, pid=5, starttime=6, cgroup=":/a")
    say("bound")
    resized = tuple(Holding(holding.uuid, 1 << 33) for holding in holdings)
    ledger.resize(replace(ledger.entries["a" * 16], holdings=resized))
    say("resized")
    ledger.release("a" * 16)
    say("released")
    """
)


def state_of(ledger: Ledger) -> str:
    found = ledger.entries.get("a" * 16)
    if found is None:
        return "none"
    assert len(found.holdings) == 2, "half an entry"
    sizes = {holding.memory_bytes for holding in found.holdings}
    assert len(sizes) == 1, "half a resize"
    if found.state == "reserved":
        return "added"
    assert (found.pid, found.starttime, found.cgroup) == (5, 6, ":/a"), "half a bind"
    return "resized" if sizes == {1 << 33} else "bound"


def test_a_daemon_that_is_killed_at_any_statement_loses_nothing(tmp_path: Path) -> None:
    """At each point the store is as before or as after the step, and never behind what was said."""
    steps = ["none", "added", "bound", "resized", "none"]
    seen = set()
    for point in range(200):
        file = tmp_path / f"{point}.db"
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(file), str(point)],
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout.split()
        found = Ledger(file, "boot-1")
        state = state_of(found)
        seen.add(state)
        found.close()
        assert state in {steps[len(said)], steps[min(len(said) + 1, 4)]}, (point, said)
        if done.returncode == 0:
            assert said[-1] == "released"
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    else:
        pytest.fail("it never got to the end")
    assert point > 15
    assert seen == set(steps)
