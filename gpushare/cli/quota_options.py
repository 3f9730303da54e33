# SPDX-License-Identifier: Apache-2.0
"""The options of `gpushare set` and `run` that stand for keys of a quota."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from gpushare.cli.errors import BadKeyValue
from gpushare.quota.errors import BadValue, quoted
from gpushare.quota.keys import KEYS, OPERATORS, POLICIES, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from click.shell_completion import CompletionItem

#: What the value is called, and the help.
_HELP: Final[Mapping[str, tuple[str, str]]] = {
    "profile": ("NAME", "A profile of the node: see gpushare ls --profiles."),
    "memory": ("SIZE", "Memory quota on each card, for example 4GiB."),
    "memory-limit": (
        "SIZE",
        (
            "Burst limit: how much memory may be used while the card has unreserved memory. Must "
            "be at least --memory."
        ),
    ),
    "cores": ("PERCENT", "Share of each card's compute, in percent."),
    "count": ("N", "Number of cards."),
    "devices": ("CARDS", "Indices or UUIDs of the allowed cards."),
    "compute-capability": ("VERSIONS", "Compute capabilities of the cards, for example >=8.0."),
    "policy": ("POLICY", f"Sharing policy for compute: {', '.join(POLICIES)}."),
    "weight": ("N", "Relative weight; only with native-burst-share."),
    "priority": ("N", "Priority among offline containers, 0 (first) to 9."),
    "class": (
        "CLASS",
        "Latency class, online or offline: online containers are never throttled for offline ones.",
    ),
    "idle-after": (
        "TIME",
        "Time without any use of its cards, for example 30m, after which it is idle.",
    ),
    "time-limit": (
        "TIME",
        "Time after which it is stopped, counted from its start, for example 8h.",
    ),
    "over-quota": (
        "ACTION",
        (
            "Action when the container exceeds its quota by bypassing the library: observe, warn, "
            "freeze or kill."
        ),
    ),
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
            self._key.parse(text)
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
    metavar, text = _HELP.get(name, ("VALUE", None))
    words = [f"--{name}", *([variable] if variable else [])]
    return click.option(*words, type=QuotaValue(key), metavar=metavar, help=text, hidden=hidden)
