# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify`: proves on this host that what gpushare promises holds."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpushare import install
from gpushare.cli import session as shared
from gpushare.engines import registration
from gpushare.engines.engine import ENGINES
from gpushare.engines.errors import EngineError
from gpushare.errors import UserError
from gpushare.quota.size import format_size
from gpushare.verify import (
    Containerd,
    Cores,
    Docker,
    Host,
    Report,
    Scenario,
    Sizes,
    Trial,
    cores,
)

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import Card
    from gpushare.verify import Engine

FAILED: Final = 1
MIB: Final = 1 << 20
WAYS: Final = ("docker", "containerd", "host")
PREFIX: Final = "gpushare-verify-"
SHARE: Final = 30  # percent, where --cores names none
BUSY: Final = 5  # percent of a card's time, from where on others are at work on it


@shared.command("verify", example="gpushare verify --cores 30 --runtime docker")
@click.option("--memory", is_flag=True, help="Memory quotas; the default.")
@click.option(
    "--cores",
    "percent",
    is_flag=False,
    flag_value=SHARE,
    type=click.IntRange(1, 99),
    metavar="[PERCENT]",
    help=f"A share of compute, {SHARE} % where none is named.",
)
@click.option("--alone", is_flag=True, help="With --cores: without a second tenant beside it.")
@click.option(
    "--runtime",
    "way",
    type=click.Choice(WAYS),
    help="Where the tenants run; else docker where it is registered, else on this host.",
)
def command(
    session: Session, memory: bool, percent: int | None, alone: bool, way: str | None
) -> None:
    """Prove on this host that quotas hold.

    --memory starts two tenants, goes to their quotas and over through each way to allocate, looks
    where the memory is, resizes one, kills one, and lends to a third.

    --cores starts one that asks for a fixed share and one that asks for none, keeps the card busy
    with both, and looks at what each got over ten seconds (longer where a simulated card is in slow
    motion): as gpushare counts, and as the driver does. The share holds when both are within 2
    points of what was asked.

    Each step prints the command that it runs. Nothing of it stays. The exit status is 1 when
    anything that gpushare claims did not happen.
    """
    if alone and percent is None:
        raise click.UsageError("--alone is for --cores")
    cards = session.client.cards()
    if not cards:
        raise UserError("there is no card to verify on; see gpushare doctor")
    status = session.client.status()
    trial = None if percent is None else _trial(cards, percent, status["slow_motion"], alone=alone)
    installation = install.Installation(Path(status["libraries"]).parent)
    engine = _engine(way or _default_way(), session, installation)
    report = Report(io.StringIO() if session.json else sys.stdout)
    engine.prepare(installation.probe)
    try:
        if trial is not None:
            Cores(engine, _ourselves(), report, PREFIX, trial=trial).run()
        if memory or trial is None:
            roomiest = max(cards, key=lambda card: card["free_bytes"])
            sizes = _sizes(roomiest["free_bytes"], roomiest["cores_free"])
            Scenario(engine, _ourselves(), report, PREFIX, sizes).run()
    finally:
        engine.finish()
    report.title(report.summary)
    if session.json:
        session.show([asdict(check) for check in report.checks], str)
    if not report.held:
        click.get_current_context().exit(FAILED)


def _trial(cards: list[Card], percent: int, slow_motion: float, *, alone: bool) -> Trial:
    """Return what is tried on the card that others leave the most time of."""
    reasons = {card["index"]: _no_room(card, percent, alone=alone) for card in cards}
    fit = [card for card in cards if not reasons[card["index"]]]
    if not fit:
        why = "; ".join(f"card {index} {reason}" for index, reason in reasons.items())
        raise UserError(f"no card is free enough to show {percent} % of its compute: {why}")
    card = min(fit, key=lambda one: (one["utilisation"] or 0, one["tenants"], -one["free_bytes"]))
    others = bool(card["tenants"]) or (card["utilisation"] or 0) >= BUSY
    return Trial(card["index"], percent, alone, others, slow_motion)


def _no_room(card: Card, percent: int, *, alone: bool) -> str:
    """Return why `percent` cannot be shown on `card`; empty where it can."""
    tenants = 1 if alone else 2
    need = tenants * cores.MEMORY_BYTES
    if card["health"] != "ok":
        return f"is not well ({card['health']})"
    if card["mode"] == "exclusive":
        return "is another's whole card"
    if card["policy"] not in {"", "fixed-share"}:
        return f"has {card['policy']} for all (gpushare card policy)"
    if card["cores_free"] < percent:
        return f"has {card['cores_free']} % left"
    if card["free_bytes"] < need:
        return f"has {format_size(card['free_bytes'])} free, {format_size(need)} are needed"
    if card["tenants"] + tenants > card["tenants_max"]:
        return f"has {card['tenants']} of {card['tenants_max']} tenants"
    return ""


def _ourselves() -> list[str]:
    """Return the words that call this program again."""
    program = Path(sys.argv[0])
    return [str(program)] if program.name == "gpushare" else [sys.executable, "-m", "gpushare.cli"]


def _default_way() -> str:
    docker = ENGINES["docker"]
    try:
        there = docker.present() and registration.registered(docker.place(Path("/"), None).files[0])
    except EngineError:
        there = None  # a docker that cannot be told of us
    return "docker" if there else "host"


def _engine(way: str, session: Session, installation: install.Installation) -> Engine:
    env = {"GPUSHARE_SOCKET": str(session.socket)}
    if way == "docker":
        return Docker(env=env)
    if way == "containerd":
        return Containerd(installation.launcher, env=env)
    return Host(_ourselves(), installation.probe, env=env)


def _sizes(free_bytes: int, cores_free: int) -> Sizes:
    """Return the scenario's sizes, smaller where the roomiest card has no room for them."""
    usual = Sizes()
    small_cores, large_cores = usual.small_cores, usual.large_cores
    if small_cores + large_cores > cores_free:
        small_cores, large_cores = cores_free // 3, cores_free // 3 * 2
    if usual.small + usual.large <= free_bytes:
        return Sizes(small_cores=small_cores, large_cores=large_cores)
    unit = free_bytes // 8 // (256 * MIB) * 256 * MIB
    if unit < 512 * MIB:
        raise UserError("verify needs 4 GiB free on one card; see gpushare ls")
    return Sizes(2 * unit, 4 * unit, 3 * unit, small_cores, large_cores)
