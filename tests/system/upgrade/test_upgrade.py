# SPDX-License-Identifier: Apache-2.0
"""gpushared is replaced while containers allocate and launch: no call fails, no byte is lost.

The other version, "9.", has pages of another layout, and adds a key to each message. What works
with what is in docs/how-to/upgrade.md.
"""

from __future__ import annotations

import subprocess
import time

import pytest

from gpushare import abi, protocol
from gpushare.client import RequestRefused
from gpushare.verify import ProbeTenant
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
            assert_commands_work(node)
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


def assert_commands_work(node: TwoVersions) -> None:
    """Those of both versions, before a daemon of the other one."""
    for command in (node.stack.cli, node.variant.argv("gpushare.cli")):
        for words in (("ls", "--json"), ("ps", "--json"), ("metrics",)):
            env = node.stack.environment
            done = subprocess.run([*command, *words], env=env, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("is_newer", [False, True], ids=["older-launcher", "newer-launcher"])
def test_a_container_starts_by_a_launcher_of_another_version(
    both: TwoVersions, is_newer: bool
) -> None:
    """While setup has switched the launcher and gpushared has not restarted, or the reverse."""
    node = both
    daemon, launcher = (node.ours, node.other) if is_newer else (node.other, node.ours)
    node.replace_daemon(daemon)
    started = str(launcher.root / "bin/gpushare-runtime")
    bundle = share(node.stack)
    words = bundle.argv("run", "--bundle", str(bundle.path), bundle.id, runtime=started)
    with ProbeTenant(bundle.id, words, node.stack.environment) as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask("info")["total"] == node.allocated() == GIB
    bundle.remove()
    wait_until(lambda: node.allocated() == 0)


def row_is_gone(node: TwoVersions, load: BackgroundLoad) -> bool:
    def gone() -> bool:
        rows: list[protocol.TenantStatus] = node.client.tenants()
        return all(row["id"] != load.bundle.id for row in rows)

    wait_until(gone)
    return True
