# SPDX-License-Identifier: Apache-2.0
"""`gpushare set`: change or reset a running container's quota."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from gpushare import protocol
from gpushare.cli import session as shared
from gpushare.cli.session import BadKeyValue, container_argument
from gpushare.cli.status import memory as use
from gpushare.cli.status import share, tenant_name
from gpushare.cli.text import printable
from gpushare.quota.errors import BadValue, quoted
from gpushare.quota.keys import KEYS, OPERATORS, POLICIES, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from click.shell_completion import CompletionItem

    from gpushare.cli.session import Session
    from gpushare.protocol.rows import TenantStatus


# --- the options of `gpushare set` and `run` that stand for keys of a quota ---

#: The name of the value.
_METAVARS: Final = {
    "memory": "SIZE",
    "memory-limit": "SIZE",
    "cores": "PERCENT",
    "count": "N",
    "devices": "CARDS",
    "policy": "POLICY",
    "weight": "N",
    "priority": "N",
    "class": "CLASS",
    "idle-after": "TIME",
    "time-limit": "TIME",
    "over-quota": "ACTION",
}
CHOICES: Final = {
    "policy": POLICIES,
    "class": ("offline", "online"),
    "over-quota-action": ("observe", "warn", "freeze", "kill"),
}


class QuotaValue(click.ParamType[str]):
    """A text that a key can have; it is passed on as it was written."""

    name = "value"

    def __init__(self, key: Key) -> None:
        self._key = key

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return `value`; UsageError if the key cannot have it."""
        text = str(value)
        try:
            self._key.parse(self._key.certain(text))
        except BadValue as bad:
            fix = f"{bad.fix[0].upper()}{bad.fix[1:]}."
            raise BadKeyValue(f"{quoted(text)} {bad.rule}. {fix}", fix, ctx, param) from bad
        return text

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return the values that a shell offers."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only for shells

        choices = CHOICES.get(self._key.name, ())
        return [CompletionItem(choice) for choice in choices if choice.startswith(incomplete)]


def quota_option(
    name: str, *, variable: str | None = None, hidden: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option of a key; `over-quota` is that of the audit."""
    key = KEYS.get(name) or OPERATORS[f"{name}-action"]
    words = [f"--{name}", *([variable] if variable else [])]
    metavar = _METAVARS.get(name, "VALUE")
    kind = QuotaValue(key)
    return click.option(*words, type=kind, metavar=metavar, help=key.meaning, hidden=hidden)


# --- `gpushare set`: change or reset a running container's quota ---

SIZES = ("memory", "memory_limit")
COMPUTE = ("cores", "policy", "weight", "priority", "class")


@shared.command("set")
@container_argument
@quota_option("memory")
@quota_option("memory-limit")
@quota_option("cores")
@quota_option("policy")
@quota_option("weight")
@quota_option("priority")
@quota_option("class")
@quota_option("idle-after")
@quota_option("time-limit")
@quota_option("over-quota", variable="over_quota_action")
@click.option("--reset", is_flag=True, help="Reset all overrides.")
def command(session: Session, container: str, reset: bool, **options: str | None) -> None:
    """Change or reset a running container's quota.

    The new quota applies immediately and lasts until the container is removed. It overrides the
    card's policy (gpushare card policy); --over-quota overrides audit.over_quota in gpushare.yaml.

    A request that the card has no room for is refused (exit status 3). If the container already
    uses more memory than its new quota, it keeps that memory, but further allocations fail until it
    has freed enough.
    """
    changed: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if reset and changed:
        raise click.UsageError(
            "--reset cannot be combined with other changes. Run gpushare set again for those."
        )
    if not reset and not changed:
        raise click.UsageError("nothing to change. Use, for example, --memory 6GiB or --cores 40.")
    before = session.client.tenant(container)
    if reset:
        tenant = session.client.set(container, reset=True)
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
        parts += [share(tenant, card)] if changed.intersection(COMPUTE) else []
        parts += (
            [f"over-quota action: {tenant['over_quota_action']}"]
            if "over_quota_action" in changed
            else []
        )
        lines += [f"{called}: card {card['index']}: {', '.join(parts)}"] if parts else []
    return lines + [printable(warning) for warning in tenant["warnings"]]


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield "memory 6GiB (was 4GiB, env)" for each key that differs."""
    for key in sorted({*before, *now}):
        old, new = before.get(key, ""), now.get(key, "")
        if old != new:
            text, _, source = old.partition(" ")
            was = f"was {text}, {source}" if old else "was not set"
            yield f"{key} {new.partition(' ')[0] or '-'} ({was})"
