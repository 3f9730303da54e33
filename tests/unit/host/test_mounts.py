# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gpushare.host.mounts import root_is_shared

ROOT = "29 1 254:0 / / rw,relatime {}- ext4 /dev/vda rw"
OVER = "30 29 0:22 / / rw {}- overlay overlay rw,lowerdir=/a - b"
SYS = "31 29 0:23 / /sys rw shared:7 - sysfs sysfs rw"


@pytest.mark.parametrize(
    ("lines", "shared"),
    [
        ([ROOT.format("shared:1 "), SYS], True),
        ([ROOT.format("master:1 "), SYS], False),
        ([ROOT.format("shared:1 "), OVER.format(""), SYS], False),
        ([ROOT.format(""), OVER.format("shared:2 master:1 ")], True),
        ([SYS], False),
    ],
)
def test_what_is_mounted_later_is_seen_where_the_root_is_shared(
    lines: list[str], shared: bool
) -> None:
    assert root_is_shared("\n".join(lines) + "\n") == shared
