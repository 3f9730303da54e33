# SPDX-License-Identifier: Apache-2.0
"""Bad input: refused with what, which value and what to do; and nothing is left half-done."""

from __future__ import annotations

import pytest

from tests.leftovers import mounts_under
from tests.stack import Stack
from tests.stack.bundle import Bundle


def pages(stack: Stack) -> list[str]:
    """Return the mounts for tenants, without those that gpushared makes ahead of need."""
    return [str(one) for one in mounts_under(stack.root) if "/tenants/." not in str(one)]


def refusal(bundle: Bundle) -> str:
    """Run `bundle`, which must be refused; return the one line of the refusal."""
    config = (bundle.path / "config.json").read_bytes()
    files = sorted(bundle.path.rglob("*"))
    before = bundle.stack.client.tenants(), pages(bundle.stack)
    said = bundle.refusal()
    after = bundle.stack.client.tenants(), pages(bundle.stack)
    assert after == before, "a refused container holds a reservation, or pages"
    assert bundle.call("state").returncode != 0, "a refused container exists"
    assert (bundle.path / "config.json").read_bytes() == config
    assert sorted(bundle.path.rglob("*")) == files, "something is left in the bundle"
    [line] = said.splitlines()
    assert line.startswith("gpushare: ")
    assert line.count("gpushare: ") == 1
    return line


@pytest.mark.gate
@pytest.mark.parametrize(
    ("quota", "words"),
    [
        ({"memory": "4Q"}, ["GPUSHARE_MEMORY=4Q: not a size. Write e.g. 4GiB."]),
        ({"devices": "7"}, ["card 7 does not exist", "has card 0", "gpushare ls"]),
        ({"memory": "2000GiB"}, ["no card has room for 2000 GiB", "available"]),
    ],
)
def test_a_quota_that_cannot_be_is_refused_by_key_value_and_fix(
    stack: Stack, quota: dict[str, str], words: list[str]
) -> None:
    said = refusal(Bundle(stack, quota=quota))
    for word in words:
        assert word in said


@pytest.mark.gate
def test_without_a_daemon_only_containers_that_ask_for_a_gpu_are_refused() -> None:
    with Stack() as alone:  # its daemon is never started
        with Bundle(alone).run() as tenant:
            assert tenant.wait() == 3, tenant.errors  # the probe ran and found no driver
        asking = Bundle(alone, quota={"memory": "4GiB"})
        assert "gpushared" in asking.refusal()
        assert asking.call("state").returncode != 0
