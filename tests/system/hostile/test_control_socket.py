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
from gpushare.protocol.operations import OPERATIONS as TABLE
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

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
    common = {"name": name, "memory": "1GiB", "signal": "TERM", "timeout": 600, "key": "a" * 16,
              "id": "x", "pid": 1, "bundle": "/x", "marker": "strong", "card": "99",
              "quota": {"memory": "1TiB"}}
    print(json.dumps({op: ask({"op": op, **common}) for op in sys.argv[3:]}), flush=True)
    """
)
OPERATIONS = {op: row for op, row in TABLE.items() if op != "hello"}  # which has no answer to keep
#: To read an interpreter that is only root's; only a socket's mode lets a caller through to it.
LETS = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
OF_USERS = {"open", "queue-take", "queue-cancel"}
READS = {op for op, one in OPERATIONS.items() if not one.changes}
# The codes that root gets for invalid requests: each was let through to be judged.
JUDGED = {"ok", "invalid", "not-found", "refused", "internal"}


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
    """Another's container, which the callers query; it is unchanged afterwards."""
    bundle = Bundle(stack, quota={"memory": "4GiB"})
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        before = Client(stack.socket).tenant(bundle.id)
        yield bundle.id
        after = Client(stack.socket).tenant(bundle.id)
        assert (before["quota"], after["interventions"]) == (after["quota"], [])
        assert tenant.ask("info")["total"] == 4 << 30


@pytest.mark.gate
def test_a_container_gets_nothing_of_the_hosts_socket(stack: Stack, victim: str) -> None:
    """As root, with every right to files."""
    bundle = Bundle(
        stack,
        quota={"memory": "1GiB"},
        args=[*python(HOST), "-c", ASKS, SOCKET, victim, *OPERATIONS],
    )
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


@pytest.fixture
def readable() -> Iterator[Stack]:
    """A daemon that lets its readers' group alone read."""
    with Stack() as made:
        with made.config.open("a") as file:
            file.write("read_group: daemon\n")
        made.start_daemon()
        yield made


@pytest.mark.gate
def test_each_local_user_gets_only_its_operations(readable: Stack) -> None:
    asked = sorted(OPERATIONS.keys() - {"stop", "create"})
    wait_until(lambda: bool(Client(readable.socket).cards()))

    def said(*words: str) -> dict[str, Any]:
        user = ["setpriv", "--reuid=12345", "--regid=12345", *words, *LETS]
        program = [sys.executable, "-c", ASKS, str(readable.socket), "x", *asked]
        return said_by([*user, *program], readable)

    in_the_group = said("--groups=1")
    allowed = (READS | OF_USERS) & set(asked)
    assert {op for op in asked if in_the_group[op] in JUDGED} == allowed
    assert {in_the_group[op] for op in asked if op not in allowed} == {"forbidden"}
    assert said("--clear-groups") == dict.fromkeys(asked, "no connection")


def said_by(argv: list[str], stack: Stack) -> dict[str, Any]:
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env=stack.environment, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
