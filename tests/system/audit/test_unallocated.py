# SPDX-License-Identifier: Apache-2.0
"""A container that has the driver's device and was given none of the card, by plain runc."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare.verify.runners import ProbeTenant
from tests.stack import Stack
from tests.stack.bundle import Bundle

GIB = 1 << 30


@pytest.fixture
def strict() -> Iterator[Stack]:
    """A daemon that is configured to kill such containers."""
    with Stack() as made:
        made.configure(audit={"unallocated": "kill"})
        made.start_daemon()
        yield made


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
    linux["resources"]["devices"].append({**node, "allow": True, "access": "rw"})
    bundle.save()
    words = bundle.argv("run", "--bundle", str(bundle.path), bundle.id, runtime=str(stack.runtime))
    tenant = ProbeTenant(bundle.id, words, stack.environment)
    assert tenant.start()["code"] == 0
    return bundle, tenant


def test_it_is_ended_where_the_operator_chose_so(strict: Stack, taker: bytes) -> None:
    bundle, tenant = past_gpushare(strict, taker)
    with tenant:
        assert tenant.wait() != 0
        assert '"unallocated-container-killed"' in (strict.root / "gpushared.log").read_text()
    bundle.call("delete", "--force", runtime=str(strict.runtime))
