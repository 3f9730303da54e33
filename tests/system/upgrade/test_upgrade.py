# SPDX-License-Identifier: Apache-2.0
"""gpushared is replaced while containers allocate and launch: no call fails, no byte is lost."""

from __future__ import annotations

import os
import signal
import time

import pytest

from gpushare import abi, protocol
from gpushare.client import RequestRefused
from tests.system.waiting import wait_until

from .conftest import TwoVersions, share
from .load import BackgroundLoad

GIB = 1 << 30
MIB = 1 << 20
OUT_OF_MEMORY = 2


def holds_its_quota(load: BackgroundLoad) -> None:
    """Of 1 GiB, less the context, no more is given, and no less."""
    load.ask("free")
    try:
        assert load.ask(f"alloc {GIB}")["code"] == OUT_OF_MEMORY
        filled = load.ask("fill")
        assert filled["code"] == OUT_OF_MEMORY
        free = load.ask("info")["free"]
        assert free < filled["granule"]
    finally:
        load.ask("free")


def account(node: TwoVersions, load: BackgroundLoad) -> dict[str, int]:
    """Return what an idle container holds by its own account, which the driver's figure bears out.

    What the driver has beside it is the driver's own: it is seen, and may change by a block.
    """

    def agrees() -> bool:
        card = node.client.why(load.bundle.id)["cards"][0]
        found.update({part: size for part, size in card["kinds"].items() if part != "unaccounted"})
        return card["used_bytes"] == card["driver_bytes"]

    found: dict[str, int] = {}
    wait_until(agrees)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_is_noticed_by_no_container(node: TwoVersions, number: signal.Signals) -> None:
    with (
        BackgroundLoad(share(node.stack)) as plain,
        BackgroundLoad(share(node.stack, cores="30")) as part,
    ):
        loads = (plain, part)
        for load in loads:
            load.works()
            load.pause()
            load.ask(f"alloc {64 * MIB}")
        before = [account(node, load) for load in loads]
        assert [found["buffers"] for found in before] == [64 * MIB, 64 * MIB]
        scheduler = node.client.status()["scheduler_pid"]
        for load in loads:
            load.go_on()
            load.works()
        node.end_daemon(number)
        for load in loads:
            load.works(20)
        node.start_daemon()
        os.kill(scheduler, signal.SIGKILL)
        for load in loads:
            load.works(20)
        wait_until(lambda: node.client.status()["scheduler_pid"] not in {0, scheduler})
        windows = gate(node, part)
        part.works()
        assert gate(node, part) > windows
        for load in loads:
            load.pause()
            load.ask(f"alloc {64 * MIB}")
        assert [account(node, load) for load in loads] == before
        assert node.allocated() == 2 * GIB
        for load in loads:
            holds_its_quota(load)
    wait_until(lambda: node.allocated() == 0)


def gate(node: TwoVersions, load: BackgroundLoad) -> int:
    """Return when the scheduler was at a container's gate last."""
    content = node.page(load.bundle, abi.GRANT_NAME).read_bytes()
    offset = abi.gate_offset(0) + abi.GATE_HEARTBEAT_NS
    return int.from_bytes(content[offset : offset + 8], "little")


def test_a_version_with_other_pages_and_back_again(both: TwoVersions) -> None:
    node = both
    with BackgroundLoad(share(node.stack, cores="30")) as old:
        old.works()
        old.pause()
        before = account(node, old)
        assert node.maps(old.bundle, node.ours)
        old.go_on()

        node.replace_daemon(node.other)
        assert node.client.status()["version"].startswith("9.")
        old.works(20)
        assert "tenant-pages-incompatible" in node.events()
        assert "tenant-pages-lost" not in node.events()
        with BackgroundLoad(share(node.stack, cores="30")) as new:
            new.works()
            old.works()
            assert node.maps(new.bundle, node.other)
            assert node.maps(old.bundle, node.ours)
            assert not node.maps(new.bundle, node.ours)
            assert node.allocated() == 2 * GIB
            for load in (old, new):
                load.pause()
                holds_its_quota(load)
                load.go_on()
            # What it cannot write, it does not promise.
            with pytest.raises(
                RequestRefused, match="another version of gpushare; restart the container"
            ):
                node.client.set(old.bundle.id, memory="768MiB")
            new.pause()
            meanwhile = account(node, new)
            new.go_on()

            node.replace_daemon(node.ours)
            new.works(20)
            old.works(20)
            assert node.allocated() == 2 * GIB
            wait_until(lambda: gate(node, old) > time.monotonic_ns() - 10**9)
            old.pause()
            assert account(node, old) == before
            holds_its_quota(old)
            node.client.set(old.bundle.id, memory="768MiB")
            assert old.ask("info")["total"] == 768 * MIB

            node.replace_daemon(node.other)
            new.works(20)
            new.pause()
            assert account(node, new) == meanwhile
            holds_its_quota(new)
        assert row_is_gone(node, new)
        assert node.allocated() == 768 * MIB
    wait_until(lambda: node.allocated() == 0)


def row_is_gone(node: TwoVersions, load: BackgroundLoad) -> bool:
    def gone() -> bool:
        rows: list[protocol.TenantStatus] = node.client.tenants()
        return all(row["id"] != load.bundle.id for row in rows)

    wait_until(gone)
    return True


def test_the_old_libraries_go_with_the_last_container_that_has_them(both: TwoVersions) -> None:
    node = both
    with BackgroundLoad(share(node.stack)) as old:
        old.works()
        # Two versions later it is neither the current one nor the one before.
        node.replace_daemon(node.other)
        (node.prefix / "previous").unlink()
        unused = node.prefix / "0.0.1-0123456789ab"
        unused.mkdir()
        hours_ago = time.time() - 7200
        for folder in (unused, node.ours.root):
            os.utime(folder, (hours_ago, hours_ago))
        node.replace_daemon()
        wait_until(lambda: not unused.exists())
        old.works()
        assert node.ours.root.is_dir()
    wait_until(lambda: node.allocated() == 0)
    node.replace_daemon()
    wait_until(lambda: not node.ours.root.exists())
    wait_until(lambda: node.events().count("installation-removed") == 2)
    assert node.other.root.is_dir()
