# SPDX-License-Identifier: Apache-2.0
"""`gpushare card mig plan`: the instances, the commands that create them, and what is left over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpushare.cli.mig import FROM_GUIDE, NO_REQUESTS

from .fake_daemon import rows

if TYPE_CHECKING:
    from .conftest import Cli
    from .fake_daemon import AnsweringDaemon

GIB = 1 << 30
PROFILES = [
    {
        "id": number,
        "name": name,
        "slices": int(name[0]),
        "count": len(starts),
        "multiprocessors": 16 * int(name[0]),
        "memory_bytes": round(9.75 * size * GIB),
        "places": [[start, size] for start in starts],
    }
    for number, name, size, starts in (
        (19, "1g.10gb", 1, range(7)),
        (9, "3g.40gb", 4, (0, 4)),
    )
]


def card(index: int = 0, **more: Any) -> dict[str, Any]:
    plain = {
        "index": index,
        "uuid": f"GPU-{index}",
        "model": "H100",
        "mig_mode": False,
        "profiles": PROFILES,
        "placement_source": "guide",
        "instances": [],
        "blocked": "",
        "fix": "",
    }
    return {"card": {**plain, **more}}


def request(name: str, text: str, *kinds: int, cards: int = 1, **more: Any) -> dict[str, Any]:
    fitting = {f"GPU-{index}": list(kinds) for index in range(cards) if kinds}
    plain = {"name": name, "request": text, "waiting": True, "profiles": fitting}
    return {"request": {**plain, "instances": [], "refusal": "", **more}}


def test_the_plan_has_the_commands_that_create_it(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["mig-options"] = rows(
        card(), request("small", "9 GiB", 19, 9), request("large", "30 GiB", 9)
    )
    result = cli("card", "mig", "plan")
    assert result.exit_code == 0
    assert (
        result.output
        == f"""\
CARD  PROFILE  ID  PLACEMENT  MEMORY   FOR
0     1g.10gb  19  3:1        9.7 GiB  small (9 GiB)
0     3g.40gb  9   4:4        39 GiB   large (30 GiB)

To create the instances, run as root:
  nvidia-smi -i 0 -mig 1
  nvidia-smi mig -i 0 -cgi 9:4,19:3 -C

{FROM_GUIDE}
"""
    )
    assert daemon.requests == [{"op": "mig-options", "requests": []}]
    plan = json.loads(cli("card", "mig", "plan", "--json").output)
    assert plan["cards"][0]["commands"] == [
        *("nvidia-smi -i 0 -mig 1", "nvidia-smi mig -i 0 -cgi 9:4,19:3 -C")
    ]
    assert plan["cards"][0]["create"][0] == {
        "profile": "1g.10gb",
        "profile_id": 19,
        "start": 3,
        "size": 1,
        "request": "small",
    }
    assert (plan["unserved"], plan["existing"], plan["exact"]) == ([], [], True)


def test_requests_of_the_command_line_are_sent_by_key(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["mig-options"] = rows(card())
    specs = ("10GiB", "memory=10GiB,cores=20", "count=1,backend=mig,allow=MIG 1g.10gb,H200")
    result = cli("card", "mig", "plan", *(word for spec in specs for word in ("--request", spec)))
    assert result.output == f"{NO_REQUESTS}\n"
    assert daemon.requests[0]["requests"] == [
        {"memory": "10GiB"},
        {"memory": "10GiB", "cores": "20"},
        {"count": "1", "backend": "mig", "allow": "MIG 1g.10gb,H200"},
    ]
