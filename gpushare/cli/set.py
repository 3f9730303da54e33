# SPDX-License-Identifier: Apache-2.0
"""`gpushare set`: change or reset a running container's quota."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare import protocol
from gpushare.cli import session as shared
from gpushare.cli.ps import memory as use
from gpushare.cli.ps import share, tenant_name
from gpushare.cli.text import printable
from gpushare.quota.keys import POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpushare.cli.session import Session
    from gpushare.protocol import TenantStatus

SIZES = ("memory", "memory_limit")


@shared.command("set", example="gpushare set train --memory 6GiB --cores 40")
@click.argument("container")
@click.option("--memory", metavar="SIZE", help="Memory quota on each card, for example 4GiB.")
@click.option(
    "--memory-limit",
    metavar="SIZE",
    help="Burst limit: how much memory the container may use while the card has unreserved memory. "
    "Must be at least --memory.",
)
@click.option(
    "--cores",
    type=click.IntRange(1, 99),
    metavar="PERCENT",
    help="Share of each card's compute, in percent.",
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    metavar="POLICY",
    help=f"Sharing policy for compute: {', '.join(POLICIES)}.",
)
@click.option(
    "--weight",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Relative weight; only with native-burst-share.",
)
@click.option(
    "--priority",
    type=click.IntRange(0, 9),
    metavar="N",
    help="Priority among offline containers, 0 (first) to 9.",
)
@click.option(
    "--class",
    "class_",
    type=click.Choice(("online", "offline")),
    metavar="CLASS",
    help="Latency class, online or offline: online containers are never throttled for offline "
    "ones.",
)
@click.option(
    "--over-quota",
    type=click.Choice(("observe", "warn", "freeze", "kill")),
    metavar="ACTION",
    help="Action when the container exceeds its quota by bypassing the library: observe, warn, "
    "freeze or kill.",
)
@click.option(
    "--reset",
    is_flag=False,
    flag_value=protocol.RESET_ALL,
    metavar="[KEY,...]",
    help="Reset all overrides, or the listed ones.",
)
def command(session: Session, container: str, reset: str | None, **options: object) -> None:
    """Change or reset a running container's quota.

    The new quota applies immediately and lasts until the container is removed; in Kubernetes, until
    its pod is. It overrides the card's policy (gpushare card policy); --over-quota overrides
    audit.over_quota in gpushare.yaml.

    A request that the card has no room for is refused (exit status 3). If the container already
    uses more memory than its new quota, it keeps that memory, but further allocations fail until it
    has freed enough.
    """
    changed = {key.rstrip("_"): str(value) for key, value in options.items() if value is not None}
    if reset is not None and changed:
        raise click.UsageError(
            "--reset cannot be combined with other changes. Run gpushare set again for those."
        )
    if reset is None and not changed:
        raise click.UsageError("nothing to change. Use, for example, --memory 6GiB or --cores 40.")
    before = session.client.tenant(container)
    if reset is not None:
        keys = [] if reset == protocol.RESET_ALL else reset.split(",")
        tenant = session.client.reset(container, *keys)
        changed = dict.fromkeys(protocol.SET_FIELDS, "")
    else:
        tenant = session.client.set(container, **changed)
    session.show(tenant, lambda: "\n".join(_lines(before, tenant, set(changed))))


def _lines(before: TenantStatus, tenant: TenantStatus, changed: set[str]) -> list[str]:
    """Return a line for each changed key, and one for each card with the result."""
    called = printable(tenant_name(tenant))
    lines = [printable(f"{called}: {line}") for line in _changes(before["quota"], tenant["quota"])]
    for card in tenant["cards"]:
        parts = [use(card)] if changed.intersection(SIZES) else []
        parts += [share(tenant, card)] if changed.difference((*SIZES, "over_quota_action")) else []
        parts += (
            [f"over-quota action: {tenant['over_quota_action']}"]
            if "over_quota_action" in changed
            else []
        )
        lines.append(f"{called}: card {card['index']}: {', '.join(parts)}")
    return lines + [printable(warning) for warning in tenant["warnings"]]


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield "memory 6GiB (was 4GiB, env)" for each key that differs."""
    for key in sorted({*before, *now}):
        old, new = before.get(key, ""), now.get(key, "")
        if old != new:
            text, _, source = old.partition(" ")
            was = f"was {text}, {source}" if old else "was not set"
            yield f"{key} {new.partition(' ')[0] or '-'} ({was})"
