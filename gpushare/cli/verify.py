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
from gpushare.verify import Containerd, Docker, Host, Report, Scenario, Sizes

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.verify import Engine

FAILED: Final = 1
MIB: Final = 1 << 20
WAYS: Final = ("docker", "containerd", "host")


@shared.command("verify", example="gpushare verify --memory --runtime docker")
@click.option("--memory", is_flag=True, help="Memory quotas (the default, and all there is yet).")
@click.option(
    "--runtime",
    "way",
    type=click.Choice(WAYS),
    help="Where the tenants run; else docker where it is registered, else on this host.",
)
def command(session: Session, memory: bool, way: str | None) -> None:  # noqa: ARG001
    """Prove on this host that quotas hold.

    Starts two tenants, goes to their quotas and over through each way to allocate, looks where the
    memory is, resizes one, kills one, and lends to a third. Each step prints the command that it
    runs. Nothing of it stays. The exit status is 1 when anything that gpushare claims did not
    happen.
    """
    cards = session.client.cards()
    if not cards:
        raise UserError("there is no card to verify on; see gpushare doctor")
    installation = install.Installation(Path(session.client.status()["libraries"]).parent)
    engine = _engine(way or _default_way(), session, installation)
    report = Report(io.StringIO() if session.json else sys.stdout)
    roomiest = max(cards, key=lambda card: card["free_bytes"])
    sizes = _sizes(roomiest["free_bytes"], roomiest["cores_free"])
    engine.prepare(installation.probe)
    try:
        held = Scenario(engine, _ourselves(), report, "gpushare-verify-", sizes).run()
    finally:
        engine.finish()
    report.title(report.summary)
    if session.json:
        session.show([asdict(check) for check in report.checks], str)
    if not held:
        click.get_current_context().exit(FAILED)


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
