# SPDX-License-Identifier: Apache-2.0
"""`gpushare set`: change a running container's quota."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare import protocol
from gpushare.cli import session as shared
from gpushare.cli.ps import memory as use
from gpushare.cli.ps import name, share
from gpushare.cli.table import printable
from gpushare.quota.keys import POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpushare.cli.session import Session
    from gpushare.protocol import Tenant

SIZES = ("memory", "memory_limit")


@shared.command("set", example="gpushare set train --memory 6GiB --cores 40")
@click.argument("container")
@click.option("--memory", metavar="SIZE", help="Promised, per card: 4GiB, 512MiB, 4g.")
@click.option("--memory-limit", metavar="SIZE", help="What it may be lent with it; from memory up.")
@click.option("--cores", type=click.IntRange(1, 100), help="Percent of each card's compute.")
@click.option("--policy", type=click.Choice(POLICIES), help="What it gets while others idle.")
@click.option("--weight", type=click.IntRange(1, 1000), help="Under native-burst-share.")
@click.option("--priority", type=click.IntRange(0, 9), help="Offline: 0 comes first, strictly.")
@click.option(
    "--class",
    "class_",
    type=click.Choice(("online", "offline")),
    help="online never waits for its turn.",
)
@click.option(
    "--on-over",
    type=click.Choice(("observe", "warn", "freeze", "kill")),
    help="How far it goes where it takes more memory than that by going round the quota.",
)
@click.option(
    "--reset",
    is_flag=False,
    flag_value=protocol.RESET_ALL,
    metavar="[KEY,...]",
    help="Take back what was set: all of it, or memory,cores,...",
)
def command(session: Session, container: str, reset: str | None, **asked: object) -> None:
    """Change a running container's quota, or take that back.

    It holds until the container is removed, and above what the card's own policy says. More than
    the card has room for is refused (exit status 3). A container that uses more memory than it now
    may keeps what it has, and gets nothing more before it has freed enough; its part of the
    compute changes at once. --on-over stands above the audit of gpushare.yaml.
    """
    changed = {field.rstrip("_"): str(value) for field, value in asked.items() if value is not None}
    if reset is not None and changed:
        raise click.UsageError("--reset stands alone; say what to change afterwards")
    if reset is None and not changed:
        raise click.UsageError("say what to change, e.g. --memory 6GiB or --cores 40")
    before = session.client.tenant(container)
    if reset is not None:
        keys = [] if reset == protocol.RESET_ALL else reset.split(",")
        tenant = session.client.reset(container, *keys)
        changed = dict.fromkeys(protocol.SET_FIELDS, "")
    else:
        tenant = session.client.set(container, **changed)
    session.show(tenant, lambda: "\n".join(_lines(before, tenant, set(changed))))


def _lines(before: Tenant, tenant: Tenant, changed: set[str]) -> list[str]:
    """Return a line of what was and is asked, and one for each card, with what changed of it."""
    who = printable(name(tenant))
    lines = [printable(f"{who}: {line}") for line in _asked(before["quota"], tenant["quota"])]
    for card in tenant["cards"]:
        parts = [use(card)] if changed.intersection(SIZES) else []
        parts += [share(tenant, card)] if changed.difference((*SIZES, "on_over")) else []
        parts += [f"on over: {tenant['on_over']}"] if "on_over" in changed else []
        lines.append(f"{who}: card {card['index']}: {', '.join(parts)}")
    return lines + [printable(warning) for warning in tenant["warnings"]]


def _asked(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield "memory 6GiB (was 4GiB, env)" for each key that is another."""
    for key in sorted({*before, *now}):
        old, new = before.get(key, ""), now.get(key, "")
        if old != new:
            text, _, source = old.partition(" ")
            was = f"was {text}, {source}" if old else "was not asked"
            yield f"{key} {new.partition(' ')[0] or '-'} ({was})"
