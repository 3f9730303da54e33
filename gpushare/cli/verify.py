# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify`: test on this host that quotas are enforced."""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpushare import install
from gpushare.cli import session as shared
from gpushare.engines import ENGINES, config_files
from gpushare.engines.config_files import EngineError
from gpushare.errors import ErrorCode, ExitStatus, UserError
from gpushare.quota.size import format_size
from gpushare.verify import Report, Sizes, compute
from gpushare.verify.audit import NEEDED_BYTES, AuditScenario, AuditTrial
from gpushare.verify.compute import ComputeScenario, ComputeTrial
from gpushare.verify.memory import EvictionScenario, MemoryScenario
from gpushare.verify.runners import Containerd, Docker, HostRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.session import Session
    from gpushare.protocol.rows import CardRow
    from gpushare.verify.runners import TenantRunner


MIB: Final = 1 << 20
RUNTIMES: Final = ("docker", "containerd", "host")
PREFIX: Final = "gpushare-verify-"
DEFAULT_PERCENT: Final = 30  # of --cores without a value
BUSY: Final = 5  # percent utilization from which a card counts as used by others

runtime_option: Final = click.option(
    "--runtime",
    "way",
    type=click.Choice(RUNTIMES),
    help="Where to run the tenants. Default: docker if gpushare is registered, otherwise host.",
)


@shared.command("verify")
@click.option("--memory", is_flag=True, help="Test memory quotas. This is the default.")
@click.option(
    "--cores",
    "percent",
    is_flag=False,
    flag_value=DEFAULT_PERCENT,
    type=click.IntRange(1, 99),
    metavar="[PERCENT]",
    help=f"Test a share of compute. Default: {DEFAULT_PERCENT} %.",
)
@click.option("--evict", is_flag=True, help="Test that evicted GPU memory comes back unchanged.")
@click.option("--mps", is_flag=True, help="Test memory quotas on a card in MPS mode.")
@runtime_option
def command(
    session: Session,
    memory: bool,
    percent: int | None,
    evict: bool,
    mps: bool,
    way: str | None,
) -> None:
    """Test on this host that quotas are enforced.

    --memory starts two tenants, allocates up to and over their quotas through each allocation path,
    checks the memory breakdown, resizes one tenant, kills the other, and lets a third burst.

    --cores starts a tenant with a fixed share and one without a share, keeps the card busy with
    both, and measures the usage of each over ten seconds (longer if a simulated card runs in slow
    motion), by the figures of gpushare and of the driver. The test passes if both figures are
    within 2 points of the share.

    --mps does the same as --memory on a card in MPS mode, and checks that both tenants are clients
    of its MPS server. The card has to have mps_trusted: true. The other tests use cards without
    MPS.

    --evict starts a tenant that writes a pattern into its GPU memory, evicts it, starts another one
    in its place, and compares the pattern after the restore. Each of the two requests most of the
    memory that a card has available.

    Each step prints the command that it runs. verify removes everything that it created. If a check
    fails, the exit status is 1.
    """
    way = way or default_runtime()
    if mps and (percent is not None or way == "host"):
        raise click.UsageError(
            "--mps tests memory in containers: use it without --cores, and with "
            "--runtime docker or containerd"
        )
    cards = [card for card in session.client.cards() if (card["mode"] == "mps") == mps]
    if not cards:
        what = "card in MPS mode" if mps else "card"
        text = f"there is no {what} to test. To find the cause, run gpushare doctor."
        raise UserError(text, code=ErrorCode.NOT_FOUND)
    time_scale = session.client.status()["time_scale"]
    trial = None if percent is None else _trial(cards, percent, time_scale)
    with reported(session, way) as (engine, report):
        if trial is not None:
            ComputeScenario(engine, ourselves(), report, PREFIX, trial=trial).run()
        if evict:
            EvictionScenario(engine, ourselves(), report, PREFIX).run()
        if memory or (trial is None and not evict):
            roomiest = max(cards, key=lambda card: card["available_bytes"])
            sizes = _sizes(roomiest["available_bytes"], roomiest["cores_available"])
            backend = "mps" if mps else ""
            MemoryScenario(engine, ourselves(), report, PREFIX, sizes, backend).run()


@contextmanager
def reported(session: Session, way: str | None) -> Iterator[tuple[TenantRunner, Report]]:
    """Run scenarios in the block; then print their report, and exit with 1 if one failed."""
    installation = install.Installation(Path(session.client.status()["library_dir"]).parent)
    engine = runner(way or default_runtime(), session, installation)
    report = Report(io.StringIO() if session.json else sys.stdout)
    session.progress(f"preparing {engine.name}")
    engine.prepare(installation.probe)
    try:
        yield engine, report
    finally:
        session.progress("removing what the test created")
        engine.finish()
    report.title(report.summary)
    if session.json:
        session.show([asdict(check) for check in report.checks], str)
    if not report.passed:
        click.get_current_context().exit(ExitStatus.ERROR)


def _trial(cards: list[CardRow], percent: int, time_scale: float) -> ComputeTrial:
    """Return the trial, on the suitable card that others use least."""
    reasons = {card["index"]: _obstacle(card, percent) for card in cards}
    fit = [card for card in cards if not reasons[card["index"]]]
    if not fit:
        reason = "; ".join(f"card {index} {text}" for index, text in reasons.items() if text)
        text = f"no card can be used to test {percent} % of its compute: {reason}"
        raise UserError(text, code=ErrorCode.REFUSED)
    card = min(
        fit, key=lambda one: (one["utilization"] or 0, one["tenants"], -one["available_bytes"])
    )
    others = bool(card["tenants"]) or (card["utilization"] or 0) >= BUSY
    return ComputeTrial(card["index"], percent, others, time_scale)


def _obstacle(card: CardRow, percent: int) -> str:
    """Return why `percent` cannot be tested on `card`, empty if it can."""
    tenants = 2
    if why := _no_room(card, tenants * compute.MEMORY_BYTES):
        return why
    if card["policy"] not in {"", "fixed-share"}:
        return f"has the policy {card['policy']} (gpushare card policy)"
    if card["cores_available"] < percent:
        return f"has {card['cores_available']} % available"
    if card["tenants"] + tenants > card["max_tenants"]:
        return f"has {card['tenants']} of {card['max_tenants']} tenants"
    return ""


def _no_room(card: CardRow, need_bytes: int) -> str:
    """Return why `card` gives no shares of `need_bytes`, empty if it does."""
    if card["schedulable_reason"]:
        return f"takes no containers ({card['schedulable_reason']})"
    if "exclusive" in {card["mode"], card["allowed_mode"]}:
        return "gives no shares"
    if card["available_bytes"] < need_bytes:
        available, need = format_size(card["available_bytes"]), format_size(need_bytes)
        return f"has {available} available, of {need} required"
    return ""


def ourselves() -> list[str]:
    """Return the command that runs this program again."""
    program = Path(sys.argv[0])
    return [str(program)] if program.name == "gpushare" else [sys.executable, "-m", "gpushare.cli"]


def default_runtime() -> str:
    """Return docker if it has the runtime, otherwise host."""
    docker = ENGINES["docker"]
    try:
        files = docker.locate(Path("/"), None).files
        has_runtime = docker.is_present() and config_files.registered_launcher(files[0])
    except EngineError:
        has_runtime = None  # gpushare cannot be registered with this docker
    return "docker" if has_runtime else "host"


def runner(way: str, session: Session, installation: install.Installation) -> TenantRunner:
    """Return what starts the tenants of a test."""
    env = {"GPUSHARE_SOCKET": str(session.socket)}
    if way == "docker":
        return Docker(env=env)
    if way == "containerd":
        return Containerd(installation.launcher, env=env)
    return HostRunner(ourselves(), installation.probe, env=env)


def _sizes(available_bytes: int, cores_available: int) -> Sizes:
    """Return the sizes of the scenario, smaller if the roomiest card has too little memory."""
    usual = Sizes()
    small_cores, large_cores = usual.small_cores, usual.large_cores
    if small_cores + large_cores > cores_available:
        small_cores, large_cores = cores_available // 3, cores_available // 3 * 2
    if usual.small + usual.large <= available_bytes:
        return Sizes(small_cores=small_cores, large_cores=large_cores)
    unit = available_bytes // 8 // (256 * MIB) * 256 * MIB
    if unit < 512 * MIB:
        text = "verify requires a card with 4 GiB available. See gpushare ls."
        raise UserError(text, code=ErrorCode.REFUSED)
    return Sizes(2 * unit, 4 * unit, 3 * unit, small_cores, large_cores)


# --- `gpushare audit`: test on this host that the audit detects a container over quota ---

AUDIT_PREFIX: Final = "gpushare-audit-"


@shared.command("audit")
@click.option("--self-test", is_flag=True, help="Test that the audit detects a bypass.")
@click.option(
    "--card",
    type=click.IntRange(0, 1024),
    metavar="INDEX",
    help="The card to use. Default: an unused card.",
)
@runtime_option
def audit(session: Session, self_test: bool, card: int | None, way: str | None) -> None:
    """Test on this host that the audit detects a container over quota.

    --self-test starts a tenant with a quota of 1 GiB on an unused card. The tenant loads
    the driver past the interposer library and allocates 2 GiB. The command reports whether the
    audit detected it, after how long, and what gpushared did: nothing, a warning, or it froze or
    killed the tenant, as audit.over_quota in gpushare.yaml says. Then it stops the tenant.

    The events are in the log and in gpushare history, and may raise an alert. The exit status is 1
    if the audit did not detect the tenant or did not do what is configured. Requires root.
    """
    if not self_test:
        raise click.UsageError("nothing to do. Use --self-test.")
    if os.geteuid() != 0:
        fix = "Use sudo."
        text = f"gpushare audit --self-test requires root. {fix}"
        raise UserError(text, code=ErrorCode.FORBIDDEN, fix=fix)
    index = _unused_card(session.client.cards(), card)
    with reported(session, way) as (engine, report):
        trial = AuditTrial(index, session.client)
        AuditScenario(engine, ourselves(), report, AUDIT_PREFIX, trial=trial).run()


def _unused_card(cards: list[CardRow], wanted: int | None) -> int:
    """Return the index of the card to use; UserError if it, or every card, is in use."""
    reasons = {card["index"]: _in_use(card) for card in cards}
    if wanted is not None:
        reasons = {index: text for index, text in reasons.items() if index == wanted}
    if not reasons:
        which = "no card" if wanted is None else f"no card {wanted}"
        raise UserError(f"there is {which}. See gpushare ls.", code=ErrorCode.NOT_FOUND)
    unused = [index for index, text in reasons.items() if not text]
    if not unused:
        reason = "; ".join(f"card {index} {text}" for index, text in reasons.items())
        raise UserError(f"the test requires an unused card: {reason}", code=ErrorCode.REFUSED)
    return unused[0]


def _in_use(card: CardRow) -> str:
    """Return why the test must not run on `card`, empty if it can."""
    if card["tenants"]:
        return f"has {card['tenants']} tenants"
    if card["non_tenant_processes"] or (card["utilization"] or 0) >= BUSY:
        return "is used by processes without a quota"
    return _no_room(card, NEEDED_BYTES)
