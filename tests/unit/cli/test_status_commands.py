# SPDX-License-Identifier: Apache-2.0
"""What `ls`, `ps`, `inspect`, `set`, `card policy` and `gpushare` alone show."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import click
import pytest

from gpushare.cli import gpushare
from gpushare.cli.commands import SECTIONS
from gpushare.cli.status import PS_HEADINGS, WIDE
from gpushare.protocol import CODE_NOT_FOUND, SET_FIELDS
from gpushare.quota.keys import POLICIES
from tests.unit.rows import GIB

from .conftest import CARD, STATUS, tenant
from .fake_daemon import AnsweringDaemon, refusal, rows

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli

LS = """\
CARD  MODEL        MEMORY   ALLOCATED  BURST  NON-TENANT  AVAILABLE  CORES  TENANTS  MODE    HEALTH
0     NVIDIA H200  140 GiB  12 GiB     2 GiB  1.1 GiB     126 GiB    90 %   2/16     shared  ok
"""

PS = """\
CONTAINER  CARD  MEMORY USED/QUOTA  CORES USED/QUOTA  POLICY       THROTTLED  ISOLATION
train      0     3.9/4.0 GiB        29.8/30 %         fixed-share  12 %       interposer
serve      0     5.2/8.0 GiB        41.0/60 %         burst-share  0 %        interposer
"""


def test_ls_shows_the_design_s_table(cli: Cli, daemon: AnsweringDaemon) -> None:
    result = cli("ls")
    assert (result.exit_code, result.output) == (0, LS)
    assert daemon.requests == [{"op": "cards"}]


def test_profiles_follow_the_cards_with_how_many_more_fit(
    cli: Cli, daemon: AnsweringDaemon
) -> None:
    profiles = [
        {"name": "small", "requests": {"memory": "8GiB", "cores": "10"}, "fits": 15},
        {"name": "third", "requests": {"memory-percent": "100/3"}, "fits": 2},
    ]
    cards = rows(CARD)
    daemon.answers["cards"] = [*cards[:-1], {**cards[-1], "profiles": profiles}]
    shown = [line.split() for line in cli("ls").output.splitlines()]
    assert shown[-3:] == [
        ["PROFILE", "MEMORY", "CORES", "POLICY", "FITS"],
        ["small", "8GiB", "10", "-", "15"],
        ["third", "33.33", "%", "-", "-", "2"],
    ]
    assert json.loads(cli("ls", "--profiles", "--json").output) == profiles


def test_inspect_shows_managed_memory_beyond_the_quota(cli: Cli, daemon: AnsweringDaemon) -> None:
    more = {"oversubscribed_bytes": 3 * GIB, "oversubscribed_limit_bytes": 8 * GIB}
    daemon.answers["tenant"] = [{"ok": True, "tenant": tenant("train", 1, 4, **more)}]
    lines = cli("inspect", "train").output.splitlines()
    assert "  oversubscribed   3 GiB of 8 GiB managed memory" in lines


@pytest.mark.parametrize(
    ("closed", "shown"),
    [
        ({"cordoned": True, "cordon_reason": "ECC"}, "ok, cordoned: ECC"),
        ({"cordoned": True}, "ok, cordoned"),
        ({"health": "XID 79"}, "XID 79"),
    ],
)
def test_a_card_that_takes_no_new_container_offers_no_memory(
    cli: Cli, daemon: AnsweringDaemon, closed: dict[str, Any], shown: str
) -> None:
    daemon.answers["cards"] = rows({**CARD, "mode": "unused", **closed})
    for command in (("ls",), ("card", "ls")):
        headings, row = (re.split("  +", line) for line in cli(*command).output.splitlines())
        assert dict(zip(headings, row, strict=True))["AVAILABLE"] == "-"
        assert "126 GiB" not in row
    assert ("unused,cordoned" in cli("ls").output) is ("cordoned" in closed)
    assert cli().output.splitlines()[1] == f"card 0: NVIDIA H200, - of 140 GiB available, {shown}"


def test_ps_shows_the_design_s_table(cli: Cli, daemon: AnsweringDaemon) -> None:
    result = cli("ps")
    assert (result.exit_code, result.output) == (0, PS)
    assert daemon.requests == [{"op": "tenants"}, {"op": "queue"}]


def test_ps_all_says_what_to_add(cli: Cli, daemon: AnsweringDaemon) -> None:
    why = "it asked for nothing; add -e GPUSHARE_MEMORY=4GiB"
    daemon.answers["tenants"] = rows(tenant("web", 0, 0, state="none", reason=why, cards=[]))
    result = cli("ps", "-a")
    assert result.output.splitlines()[-1] == f"web has no GPU: {why}"
    assert daemon.requests == [{"op": "tenants", "all": True}, {"op": "queue"}]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("ls", "there is no card. To find the cause, run gpushare doctor."),
        ("ps", "no container uses a GPU. To start one, run: docker run --runtime=gpushare"),
    ],
)
def test_an_empty_table_says_what_to_type_next(
    cli: Cli, daemon: AnsweringDaemon, command: str, says: str
) -> None:
    daemon.answers |= {"cards": rows(), "tenants": rows()}
    result = cli(command)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith(says)
    as_json = cli(command, "--json")
    assert (as_json.stdout, as_json.stderr) == ("[]\n", "")


def test_ps_shows_burst_use_and_tenants_over_quota(cli: Cli, daemon: AnsweringDaemon) -> None:
    burst = tenant(
        "burst", 5, 4, burst_limit_bytes=8 * GIB, limit_bytes=6 * GIB, over_limit_bytes=0
    )
    daemon.answers["tenants"] = rows(burst, tenant("over", 3.7, 2))
    shown = cli("ps").output
    assert "burst      0     5.0/4.0+2.0 GiB       " in shown
    assert "over       0     3.7/2.0 GiB over quota  " in shown


def test_a_terminal_is_not_obeyed(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["tenants"] = rows(tenant("evil\x1b[2J\n", 1, 4))
    assert "evil?[2J?  0" in cli("ps").output


def test_json_is_the_daemons_answer(cli: Cli, daemon: AnsweringDaemon) -> None:  # noqa: ARG001
    assert json.loads(cli("ls", "--json").output) == [CARD]
    assert json.loads(cli("--json", "ls").output) == [CARD]
    assert json.loads(cli("inspect", "train", "--json").output)["pid"] == 4242
    assert json.loads(cli("--json").output)["daemon"]["driver_version"] == "580.159.04"


def test_the_option_for_the_socket_overrides_the_environment(
    cli: Cli, daemon: AnsweringDaemon, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere"
    for words in (("--socket", str(nowhere), "ls"), ("ls", "--socket", str(nowhere))):
        result = cli(*words)
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"there is no {nowhere}" in result.stderr
    assert cli("--socket", str(nowhere), "ls", "--socket", str(daemon.path)).exit_code == 0


def test_inspect_shows_value_and_source(cli: Cli, daemon: AnsweringDaemon) -> None:
    output = cli("inspect", "tra").output
    assert "\nmemory             4GiB   (env)\n" in output
    assert "  tracked          3.4 GiB" in output
    assert "  overhead         500 MiB: 1 context, modules, driver overhead" in output
    assert "process            4242 (in the container 1)  python  3.9 GiB" in output
    assert daemon.requests == [{"op": "tenant", "name": "tra"}]


def test_parts_of_a_request_that_were_not_applied_are_shown(
    cli: Cli, daemon: AnsweringDaemon
) -> None:
    noted = {**tenant("train", 3.9, 4), "notes": ["not given: video"]}
    daemon.answers["tenants"] = rows(noted)
    daemon.answers["tenant"] = [{"ok": True, "tenant": noted}]
    assert cli("ps", "-a").output.splitlines()[-2:] == ["", "train: not given: video"]
    lines = cli("inspect", "train").output.splitlines()
    assert any(line.split() == ["note", "not", "given:", "video"] for line in lines)


def test_inspect_shows_burst_use(cli: Cli, daemon: AnsweringDaemon) -> None:
    burst = tenant(
        "train", 5, 4, burst_limit_bytes=8 * GIB, limit_bytes=6 * GIB, over_limit_bytes=0
    )
    daemon.answers["tenant"] = [{"ok": True, "tenant": burst}]
    lines = cli("inspect", "train").output.splitlines()
    assert "  memory           5.0/4.0+2.0 GiB" in lines
    assert "  burst limit      8 GiB, currently 6 GiB" in lines
    assert "  burst used       1 GiB" in lines
    daemon.answers["tenant"] = [{"ok": True, "tenant": tenant("train", 4, 2)}]
    shown = cli("inspect", "train").output
    assert "  over quota       allocations fail until it frees 2 GiB" in shown


def test_inspect_of_a_whole_card_has_no_account(cli: Cli, daemon: AnsweringDaemon) -> None:
    whole = tenant("train", 5, 140, isolation="exclusive", overhead_bytes=0, contexts=0)
    daemon.answers["tenant"] = [{"ok": True, "tenant": whole}]
    shown = cli("inspect", "train").output
    assert "  memory           5.0/140.0 GiB\n" in shown
    assert not any(word in shown for word in ("tracked", "overhead", "denied"))


def test_inspect_of_an_unallocated_container_shows_the_reason_and_a_fix(
    cli: Cli, daemon: AnsweringDaemon
) -> None:
    none = tenant("web", 0, 0, state="none", reason="add -e GPUSHARE_MEMORY=4GiB", pid=0)
    none |= {"cards": [], "processes": [], "quota": {}, "policy": "", "isolation": ""}
    daemon.answers["tenant"] = [{"ok": True, "tenant": none}]
    lines = cli("inspect", "web").output.splitlines()
    assert "reason             add -e GPUSHARE_MEMORY=4GiB" in lines
    assert {"pid                -", "policy             -", "isolation          -"} <= set(lines)


def test_alone_it_names_the_next_step(cli: Cli, daemon: AnsweringDaemon) -> None:
    assert cli().output.splitlines() == [
        "gpushare 0.1.0: driver 580.159.04, CUDA 13.0, 1 card, 2 containers",
        "card 0: NVIDIA H200, 126 GiB of 140 GiB available, ok",
        "next: gpushare ps",
    ]
    daemon.answers["status"] = [{"ok": True, **STATUS, "tenants": 0}]
    assert cli().output.splitlines()[-1].startswith("next: docker run --runtime=gpushare")
    daemon.answers["status"] = [{"ok": True, **STATUS, "warnings": ["no CDI spec"]}]
    assert cli().output.splitlines()[-2:] == ["warn: no CDI spec", "next: gpushare ps"]
    daemon.answers["cards"] = rows({**CARD, "health": "xid 79"})
    assert cli().output.splitlines()[-1] == "next: gpushare doctor"


def test_alone_without_a_daemon_it_says_setup(cli: Cli) -> None:
    result = cli()
    assert result.exit_code == 0
    assert "next: sudo gpushare setup" in result.output


def test_help_has_each_command_in_its_section_with_an_example(cli: Cli) -> None:
    output = cli("--help").output
    for section, entries in SECTIONS.items():
        assert f"\n{section}:\n" in output
        for name, entry in entries.items():
            assert f"\n  {name} " in output
            assert f"\n  {entry.example}\n" in output
            assert isinstance(gpushare, click.Group)
            command = gpushare.get_command(click.Context(gpushare), name)
            assert command is not None
            assert command.get_short_help_str(80) == entry.summary
            help_text = cli(name, "--help").output
            assert f"Example: gpushare {name}" in help_text
            assert "--json" in help_text


def test_set_sends_what_was_written_under_the_names_of_the_protocol(
    cli: Cli, daemon: AnsweringDaemon
) -> None:
    words = [word for option in SET for word in option]
    assert cli("set", "train", *words).exit_code == 0
    fields = {name: text for name, (_, text) in zip(SET_FIELDS, SET, strict=True)}
    assert daemon.requests[-1] == {"op": "set", "name": "train", **fields}


SET = (
    ("--profile", "small"),
    ("--memory", "6GiB"),
    ("--memory-limit", "8GiB"),
    ("--cores", "040"),
    ("--policy", POLICIES[0]),
    ("--weight", "3"),
    ("--priority", "0"),
    ("--class", "online"),
    ("--idle-after", "2h"),
    ("--time-limit", "8h"),
    ("--over-quota", "kill"),
)


def test_of_a_misspelt_command_it_says_which_was_meant(cli: Cli) -> None:
    result = cli("inspct", "train")
    assert result.exit_code == 2
    assert "No such command 'inspct'. Did you mean inspect?" in result.output


def test_a_message_is_not_obeyed_by_a_terminal(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["tenant"] = refusal(
        CODE_NOT_FOUND, "no room: \x1b[2Jevil 4", candidates=["\x1b[31mred"]
    )
    result = cli("inspect", "train")
    assert result.stderr.splitlines() == ["gpushare: no room: ?[2Jevil 4", "  ?[31mred"]


def test_set_shows_the_share_that_holds_now(cli: Cli, daemon: AnsweringDaemon) -> None:
    words = ("--cores", "40", "--policy", "burst-share", "--weight", "3", "--priority", "0")
    asked = {"cores": "40", "policy": "burst-share", "weight": "3", "priority": "0"}
    now = tenant(
        "train", 3.9, 6, policy="burst-share", share_percent=40.0, is_capped=False, priority=0
    )
    daemon.answers["set"] = [{"ok": True, "tenant": now}]
    shown = cli("set", "train", *words).output
    assert shown == "train: card 0: burst-share 40.0 % and more, offline 0\n"
    assert daemon.requests[-1] == {"op": "set", "name": "train", **asked}


def test_card_policy_shows_all_cards_or_one(cli: Cli, daemon: AnsweringDaemon) -> None:
    other = {**CARD, "index": 1, "uuid": "GPU-1", "policy": "best-effort", "tenants": 0}
    daemon.answers["cards"] = rows(CARD, other)
    assert cli("card", "policy").output == (
        "CARD  MODEL        POLICY         CORES  TENANTS\n"
        "0     NVIDIA H200  per container  90 %   2/16\n"
        "1     NVIDIA H200  best-effort    90 %   0/16\n"
    )
    assert cli("card", "policy", "1").output.splitlines()[1:] == [
        "1     NVIDIA H200  best-effort  90 %   0/16"
    ]
    assert cli("card", "policy", CARD["uuid"][:12]).output.splitlines()[1].startswith("0 ")


def test_card_policy_sets_and_resets(cli: Cli, daemon: AnsweringDaemon) -> None:
    assert "burst-share" in cli("card", "policy", "0", "burst-share").output
    assert cli("card", "policy", "0", "--reset").exit_code == 0
    assert daemon.requests == [
        {"op": "card-policy", "card": "0", "policy": "burst-share"},
        {"op": "card-policy", "card": "0"},
    ]


@pytest.mark.parametrize("words", [("--reset",), ("0", "burst-share", "--reset"), ("0", "fair")])
def test_card_policy_wants_a_card_and_one_of_both(
    cli: Cli, daemon: AnsweringDaemon, words: tuple[str, ...]
) -> None:
    assert cli("card", "policy", *words).exit_code == 2
    assert not daemon.requests


def test_a_card_that_is_not_there(cli: Cli, daemon: AnsweringDaemon) -> None:  # noqa: ARG001
    result = cli("card", "policy", "7")
    assert (result.exit_code, result.stderr) == (
        1,
        "gpushare: there is no card 7. See gpushare ls.\n",
    )


WIDE_ROW = (
    "train",
    "0",
    "3.9/4.0 GiB",
    "29.8/30 %",
    "fixed-share",
    "12 %",
    "interposer",
    "30.1",
    "30.0",
    "30.0 %",
    "offline 5",
    "window",
    "600",
    "2",
    "1",
    "no",
)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_ps_wide_has_three_averages_and_the_gates_counters(
    cli: Cli, daemon: AnsweringDaemon
) -> None:
    daemon.answers["tenants"] = rows(tenant("train", 3.9, 4))
    headings, row = cli("ps", "--wide").output.splitlines()
    assert tuple(cells(headings)) == (*PS_HEADINGS, *WIDE)
    assert tuple(cells(row)) == WIDE_ROW


DRIVERS = {
    "cores_source": "driver",
    "gate": "open",
    "cores_used": {"1s": 97.0, "10s": 96.4, "60s": None},
    "throttled": {"1s": 0.0, "10s": 0.0, "60s": None},
}
SILENT = {
    "cores_source": "",
    "gate": "closed",
    "cores_used": {"1s": None, "10s": None, "60s": None},
    "throttled": {"1s": None, "10s": None, "60s": None},
}


@pytest.mark.parametrize(
    ("spent", "got", "shown", "throttled"),
    [
        (DRIVERS, 97.0, "~97/30 %", "0 %"),
        (SILENT, None, "?/30 %", "-"),
        ({**SILENT, "gate": "open"}, None, "-/30 %", "-"),
    ],
)
def test_ps_shows_the_source_of_each_figure(
    cli: Cli,
    daemon: AnsweringDaemon,
    spent: dict[str, object],
    got: float | None,
    shown: str,
    throttled: str,
) -> None:
    more = {"cores_got": got, "throttled": None if got is None else 0.0}
    daemon.answers["tenants"] = rows(tenant("train", 3.9, 4, compute=copy.deepcopy(spent), **more))
    row = cells(cli("ps").output.splitlines()[1])
    assert (row[3], row[5]) == (shown, throttled)


def test_inspect_has_all_of_it(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["tenant"] = [{"ok": True, "tenant": tenant("train", 3.9, 4)}]
    lines = cli("inspect", "train").output.splitlines()
    assert {
        "class              offline 5",
        "  cores used       29.8 % in 1s, 30.1 % in 10s, 30.0 % in 60s",
        "  share            fixed-share 30.0 %, offline 5",
        "  throttled        12 % in 1s, 10 % in 10s, 11 % in 60s",
        "  gate             window, 600 windows, 2 overruns, 1 forced launch, threads waited 2.5 s",
        "  utilization      31.0 % in 10s (reported by the driver)",
    } <= set(lines)


def test_warnings_are_in_ps_and_inspect(cli: Cli, daemon: AnsweringDaemon) -> None:
    said = "train on card 0: charged 12 %, the driver measured 40 %: work bypasses the launch gate"
    train = tenant("train", 3.9, 4, warnings=[said])
    daemon.answers |= {"tenants": rows(train), "tenant": [{"ok": True, "tenant": train}]}
    assert cli("ps").output.splitlines()[-1] == said
    assert f"warning            {said}" in cli("inspect", "train").output.splitlines()
