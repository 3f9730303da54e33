# SPDX-License-Identifier: Apache-2.0
"""The host's control socket, mounted into a container by mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.protocol.operations import OPERATIONS as TABLE
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
            link.connect(path)
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
OPERATIONS = TABLE.keys() - {"hello"}  # which has no answer to keep


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
    with bundle.started() as tenant:
        before = stack.client.tenant(bundle.id)
        yield bundle.id
        after = stack.client.tenant(bundle.id)
        assert (before["quota"], after["interventions"]) == (after["quota"], [])
        assert tenant.ask("info")["total"] == 4 << 30


@pytest.mark.gate
def test_a_container_gets_nothing_of_the_hosts_socket(stack: Stack, victim: str) -> None:
    """As root, with every right to files."""
    bundle = Bundle(
        stack,
        quota={"memory": "1GiB"},
        args=[*python(HOST), "-c", ASKS, SOCKET, victim, *sorted(OPERATIONS)],
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


def said_by(argv: list[str], stack: Stack) -> dict[str, Any]:
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env=stack.environment, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
