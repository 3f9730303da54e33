# SPDX-License-Identifier: Apache-2.0
"""Ids, arguments and creates at once: what a caller may say, and what comes of it."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from .container import RuntimeContainer, RuntimeNamespace

#: What an engine might be talked into as a container's name.
IDS = (
    "--root=/x",
    "-b/x",
    "--bundle=/x",
    "--",
    "..",
    "../../../../etc/x",
    "/etc/x",
    "a/../../b",
    ".",
    "",
    'a"}\n{"event":"forged"}',
    "$(touch x)",
    "\udcff",
    "a" * 128,
    "a" * 5000,
    "%s%n",
)

GOOD = re.compile(r"a+")


def spoken(container: RuntimeContainer, *words: str) -> tuple[int, str]:
    """Call the runtime with words of any bytes; return its status and what it said on stderr.

    Into a file: a container that is created keeps a pipe open.
    """
    with tempfile.TemporaryFile() as said:
        status = subprocess.run(
            [os.fsencode(word) for word in container.through.argv(*words)],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            cwd=container.path,
            env=container.stack.environment,
        ).returncode
        said.seek(0)
        return status, said.read().decode(errors="replace")


#: What gpushared writes by itself: the ledger with its copies, both histories, what contexts were
#: measured to take, folders that are ready for the next tenants; and its scheduler.
_LIVE = (
    "run/ledger",
    "run/copies",
    "state/history",
    "state/metrics-history",
    "state/contexts.json",
    "/tenants/.",
    "run/scheduler.sock",
)


def everything(place: RuntimeNamespace, *besides: Path) -> set[str]:
    """Return what there is in the stack's folders but for logs and the runtimes' own state."""
    tops = (place.stack.root, Path("/etc"), Path("/x"))
    skipped = {place.stack.root / "state-runc", place.stack.root / "state-crun", *besides}
    return {
        str(path)
        for top in tops
        for path in top.rglob("*")
        if not skipped & {path, *path.parents} and not any(name in str(path) for name in _LIVE)
    }


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_an_id_is_never_a_flag_or_a_path(
    container: RuntimeContainer, place: RuntimeNamespace, runtime: str
) -> None:
    container.config["process"]["args"] = ["/bin/busybox", "true"]
    container.save()
    before = everything(place, container.path)
    for name in IDS:
        for words in (("--", name), (name,)):
            status, _ = spoken(container, "create", "--bundle", str(container.path), *words)
            # Only what was made is deleted: crun 1.8's own delete removes the folder "..".
            if status == 0:
                assert GOOD.fullmatch(name), f"{name!r} was made"
                spoken(container, "delete", "--force", name)
        place.assert_empty()
    assert everything(place, container.path) == before
    assert {line["event"] for line in place.log_lines()}.isdisjoint({"forged"})
    assert runtime in str(container.through.program)


def test_of_two_creates_at_once_one_gets_it_whatever_their_timing(
    container: RuntimeContainer, place: RuntimeNamespace
) -> None:
    """Eight times, the second from 0 to 40 ms after the first."""
    container.config["process"]["args"] = ["/bin/busybox", "sleep", "1000"]
    container.save()
    words = container.argv("create", "--bundle", str(container.path), container.id)
    for round_ in range(8):
        started = []
        for delay in (0.0, round_ * 0.005):
            time.sleep(delay)
            started.append(start(container, words))
        codes = [process.wait() for process in started]
        assert sorted(map(bool, codes)) == [False, True]
        row = container.row()
        assert row is not None
        assert (row["state"], row["pid"]) == ("bound", container.pid())
        assert place.allocated() == 1 << 30
        shown = Path(f"/proc/{row['pid']}/mountinfo").read_text().splitlines()
        devices = [line.split()[2] for line in shown if line.split()[4].endswith("/tenant")]
        assert devices == [device_of_pages(place, row["key"])], "it has pages of no tenant"
        container.remove()
        place.assert_empty()


def start(container: RuntimeContainer, words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=container.stack.environment,
    )


def device_of_pages(place: RuntimeNamespace, key: str) -> str:
    [line] = [line for line in place.mountinfo() if line.split()[4].endswith(f"/{key}/pages")]
    return line.split()[2]
