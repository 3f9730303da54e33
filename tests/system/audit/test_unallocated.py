# SPDX-License-Identifier: Apache-2.0
"""A container that has the driver's device and was given none of the card, by plain runc."""

from __future__ import annotations

from gpushare.verify.runners import ProbeTenant
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

GIB = 1 << 30


def past_gpushare(stack: Stack, taker: bytes) -> tuple[Bundle, ProbeTenant]:
    bundle = Bundle(stack, args=("/bin/taker", str(3 * GIB)), files={"/bin/taker": taker})
    bundle.config["mounts"].append(
        {
            "destination": "/dev/gpushare-sim",
            "type": "bind",
            "source": stack.env["GPUSHARE_SIM_DEVICE"],
            "options": ["rbind", "rw"],
        }
    )
    node = {"type": "c", "major": 195, "minor": 0}
    linux = bundle.config["linux"]
    linux["devices"] = [{**node, "path": "/dev/nvidia0"}]
    linux["cgroupsPath"] = f"/{stack.cgroup}/{'4f5e6d7c' * 8}"  # as engines name theirs
    linux["resources"]["devices"].append({**node, "allow": True, "access": "rw"})
    bundle.save()
    words = bundle.argv("run", "--bundle", str(bundle.path), bundle.id, runtime=str(stack.runtime))
    tenant = ProbeTenant(bundle.id, words, stack.environment)
    assert tenant.start()["code"] == 0
    return bundle, tenant


def test_it_is_reported(own: Stack, taker: bytes) -> None:
    bundle, tenant = past_gpushare(own, taker)
    with tenant:
        log = own.root / "gpushared.log"
        wait_until(lambda: '"unallocated-container-detected"' in log.read_text())
    bundle.call("delete", "--force", runtime=str(own.runtime))
