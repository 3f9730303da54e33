# SPDX-License-Identifier: Apache-2.0
"""200 containers at once: none fails, each has its own, and nothing stays allocated."""

from __future__ import annotations

import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .waiting import wait_until

COUNT = 200
DELETED_AT_ONCE = 8  # a runtime waits for the kernel mostly


def test_all_are_created_and_nothing_leaks() -> None:
    with Stack(cards=16) as stack:
        folder = stack.root / "bundles"
        folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)  # as engines have it
        stack.start_daemon()
        bundles = [Bundle(stack, quota={"memory": "1GiB"}) for _ in range(COUNT)]
        creates = [start_create(bundle) for bundle in bundles]
        failed = [
            (bundle.path / "output").read_text()
            for bundle, create in zip(bundles, creates, strict=True)
            if create.wait() != 0
        ]
        assert failed == []
        client = Client(stack.socket)
        tenants = client.tenants()
        assert {row["id"] for row in tenants} == {bundle.id for bundle in bundles}
        assert {row["state"] for row in tenants} == {"bound"}
        shares = Counter(card["uuid"] for row in tenants for card in row["cards"])
        assert max(shares.values()) <= 16
        with ThreadPoolExecutor(DELETED_AT_ONCE) as pool:
            list(pool.map(Bundle.remove, bundles))
        wait_until(lambda: not client.tenants())
        assert sum(card["allocated_bytes"] for card in client.cards()) == 0


def start_create(bundle: Bundle) -> subprocess.Popen[bytes]:
    """Begin to create a container, as an engine's shim does."""
    words = bundle.argv("create", "--bundle", str(bundle.path), bundle.id)
    with (bundle.path / "output").open("wb") as output:
        return subprocess.Popen(
            words,
            env=bundle.stack.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
