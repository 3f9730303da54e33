# SPDX-License-Identifier: Apache-2.0
"""`gpushare audit`: test on this host that the audit detects a container over quota."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.verify import BUSY, ourselves, reported, runtime_option
from gpushare.errors import ErrorCode, UserError
from gpushare.quota.size import format_size
from gpushare.verify import AuditScenario, AuditTrial
from gpushare.verify.audit import NEEDED_BYTES

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import CardStatus

PREFIX: Final = "gpushare-audit-"


@shared.command("audit")
@click.option("--self-test", is_flag=True, help="Test that the audit detects a bypass.")
@click.option(
    "--card",
    type=click.IntRange(0, 1024),
    metavar="INDEX",
    help="The card to use. Default: an unused card.",
)
@runtime_option
def command(session: Session, self_test: bool, card: int | None, way: str | None) -> None:
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
        AuditScenario(engine, ourselves(), report, PREFIX, trial=trial).run()


def _unused_card(cards: list[CardStatus], wanted: int | None) -> int:
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
        raise UserError(f"the test requires an unused card: {reason}")
    return unused[0]


def _in_use(card: CardStatus) -> str:
    """Return why the test must not run on `card`, empty if it can."""
    if card["health"] != "ok":
        return f"is unhealthy ({card['health']})"
    if card["cordoned"]:
        return "is cordoned"
    if card["allowed_mode"] == "exclusive":
        return "accepts no shares (cards.allowed_mode)"
    if card["tenants"]:
        return f"has {card['tenants']} tenants"
    if card["non_tenant_processes"] or (card["utilization"] or 0) >= BUSY:
        return "is used by processes without a quota"
    if card["available_bytes"] < NEEDED_BYTES:
        return (
            f"has {format_size(card['available_bytes'])} available, of "
            f"{format_size(NEEDED_BYTES)} required"
        )
    return ""
