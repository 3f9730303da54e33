# SPDX-License-Identifier: Apache-2.0
"""The host's control socket, mounted into a container by mistake, and callers of every kind."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.client import Client
from gpushare.daemon.service.requests import OPERATIONS
from tests.e2e.waiting import wait_until
from tests.stack import Stack
from tests.stack.bundle import Bundle

HOST = "/host"
SOCKET = "/run/control.sock"
#: Asks each operation for tenant argv[2], and prints what became of it.
ASKS = textwrap.dedent(
    """
    import json, socket, sys
    path, name = sys.argv[1:3]
    def ask(request):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(20)
            try:
                link.connect(path)
            except PermissionError:
                return "no connection"
            link.send(json.dumps(request).encode())
            while True:
                reply = json.loads(link.recv(65536))
                if "ok" in reply:
                    return reply.get("code", "ok")
    common = {"name": name, "memory": "1GiB", "signal": "TERM", "grace": 600, "key": "a" * 16,
              "id": "x", "pid": 1, "bundle": "/x", "marker": "strong", "card": "99",
              "quota": {"memory": "1TiB"}}
    print(json.dumps({op: ask({"op": op, **common}) for op in sys.argv[3:]}), flush=True)
    """
)
#: To read an interpreter that is only root's; it lets nobody through to a socket but by its mode.
LETS = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
READS = {op for op, one in OPERATIONS.items() if not one.changes}
# What root is told who asks for nonsense: each was let through to be judged.
JUDGED = {"ok", "usage", "unknown", "refused", "error"}


def python(prefix: str) -> list[str]:
    """Return this interpreter as it is called where the host's root is at `prefix`."""
    loader = next(Path("/lib64").glob("ld-linux*"), None) or next(Path("/lib").glob("ld-linux*"))
    folders = ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]
    loader = loader.resolve()  # its links are from the host's root
    found = ":".join(f"{prefix}{folder}" for folder in folders)
    program = Path(sys.executable).resolve()
    return [f"{prefix}{loader}", "--library-path", found, f"{prefix}{program}"]


@pytest.fixture
def victim(stack: Stack) -> Iterator[str]:
    """Another's container, whom the callers ask about; it is as it was afterwards."""
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        before = Client(stack.socket).tenant(bundle.id)
        yield bundle.id
        after = Client(stack.socket).tenant(bundle.id)
        assert (before["quota"], after["held"]) == (after["quota"], [])
        assert tenant.ask("info")["total"] == 4 << 30


@pytest.mark.parametrize("uid", [0, 1000])
def test_a_container_gets_nothing_of_the_hosts_socket(stack: Stack, victim: str, uid: int) -> None:
    bundle = Bundle(
        stack,
        quota={"memory": "1GiB"},
        args=[*python(HOST), "-c", ASKS, SOCKET, victim, *OPERATIONS],
    )
    bundle.config["process"]["user"] = {"uid": uid, "gid": uid}
    bundle.config["process"]["env"].append(f"PYTHONHOME={HOST}{Path(sys.base_prefix).resolve()}")
    bundle.config["process"]["capabilities"] = {
        kind: ["CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH"]
        for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")
    }
    for at, source, options in (
        (HOST, "/", ["bind", "ro"]),
        (SOCKET, str(stack.socket), ["bind", "rw"]),
    ):
        bundle.config["mounts"].append(
            {"destination": at, "type": "bind", "source": source, "options": options}
        )
    bundle.save()
    said = said_by(bundle.argv("run", "--bundle", str(bundle.path), bundle.id), stack)
    assert said == dict.fromkeys(OPERATIONS, "forbidden")


def test_a_container_has_no_way_to_the_hosts_socket(stack: Stack) -> None:
    bundle = Bundle(stack, quota={"memory": "1GiB"})
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        pid = Client(stack.socket).tenant(bundle.id)["pid"]
        found = subprocess.run(
            ["find", f"/proc/{pid}/root/", "-xdev", "-name", "*.sock"],
            capture_output=True,
            text=True,
            check=False,
        )
        mounted = Path(f"/proc/{pid}/mountinfo").read_text()
    assert found.stdout == ""
    assert "control.sock" not in mounted


@pytest.fixture
def readable() -> Iterator[Stack]:
    """A daemon that lets its readers' group alone read."""
    with Stack() as made:
        with made.config.open("a") as file:
            file.write("read_group: daemon\n")
        made.start_daemon()
        yield made


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ([], set(OPERATIONS)),
        (["--reuid=12345", "--regid=12345", "--groups=1"], READS | {"open"}),
        (["--reuid=12345", "--regid=1", "--clear-groups"], READS | {"open"}),
        (["--reuid=12345", "--regid=12345", "--clear-groups"], None),
    ],
    ids=["root", "in the group", "of the group", "another"],
)
def test_who_of_the_host_may_ask_what(
    readable: Stack, words: list[str], allowed: set[str] | None
) -> None:
    asked = sorted(OPERATIONS.keys() - {"kick", "create"})
    argv = ["setpriv", *words, *LETS, sys.executable, "-c", ASKS, str(readable.socket), "x", *asked]
    wait_until(lambda: bool(Client(readable.socket).cards()))
    said = said_by(argv, readable)
    if allowed is None:
        assert said == dict.fromkeys(asked, "no connection")
    else:
        assert {op for op in asked if said[op] in JUDGED} == allowed & set(asked)
        assert {said[op] for op in asked if op not in allowed} <= {"forbidden"}


def said_by(argv: list[str], stack: Stack) -> dict[str, Any]:
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env=stack.environment, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
