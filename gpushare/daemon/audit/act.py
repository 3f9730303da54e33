# SPDX-License-Identifier: Apache-2.0
"""What was decided is done, and told: every step is an event with its figures.

The freezer is the decide thread's, and journals. What it cannot do is told as well, and tried again
at the next look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gpushare.daemon.audit.judge import Verdict
from gpushare.daemon.control.freezer import Freezer
from gpushare.daemon.log import log
from gpushare.errors import UserError
from gpushare.quota import format_size

_MOST_PIDS: Final = 8


class Actor:
    """Does what verdicts say on `freezer`, by jobs that `submit` takes.

    `failed` is told the key of a tenant that could not be frozen or killed; any thread may.
    `called` is what a card is called in words, by its uuid.
    """

    def __init__(
        self,
        freezer: Freezer,
        submit: Callable[[Callable[[], Any]], None],
        failed: Callable[[str], None],
        called: Callable[[str], str],
    ) -> None:
        self._freezer = freezer
        self._submit = submit
        self._failed = failed
        self._called = called

    def tell(self, verdict: Verdict) -> None:
        """Log what is done of one tenant on one card, and end it where that is decided."""
        for action in verdict.actions:
            figures = _figures(verdict)
            if action == "observe":
                log("over-quota-seen", "info", **figures)
            elif action == "warn":
                log("over-quota-warned", "warning", **figures)
            elif action == "freeze":
                log("over-quota-frozen", "warning", **figures)
            elif action == "kill":
                log("over-quota-killed", "warning", **figures)
                self._kill(verdict)
            elif action == "thaw":
                log("over-quota-thawed", "info", **figures)
            else:
                log("over-quota-ended", "info", **figures)

    def hold(self, verdict: Verdict) -> None:
        """Freeze the tenant."""
        key, why = verdict.entry.key, because(verdict, self._called(verdict.uuid))
        self._submit(
            lambda: self._try(key, "freeze", lambda: self._freezer.hold(key, "audit", why))
        )

    def release(self, key: str) -> None:
        """Let a tenant go on, as far as the audit held it."""
        self._submit(lambda: self._try(key, "thaw", lambda: self._freezer.release(key, "audit")))

    def _kill(self, verdict: Verdict) -> None:
        key, why = verdict.entry.key, because(verdict, self._called(verdict.uuid))
        self._submit(lambda: self._try(key, "kill", lambda: self._freezer.kill(key, why)))

    def _try(self, key: str, what: str, do: Callable[[], Any]) -> None:
        try:
            do()
        except (UserError, OSError) as error:
            log("over-quota-not-held", "error", tenant=key, step=what, error=str(error))
            if what != "thaw":
                self._failed(key)


def because(verdict: Verdict, card: str) -> str:
    """Return why, in words: "has 9 GiB of the 4 GiB that it may on card 0"."""
    sample = verdict.sample
    assert sample is not None
    used, may = format_size(sample.used_bytes), format_size(sample.may_bytes)
    lacks = ", and another lacks what it was promised" if sample.lacks else ""
    return f"has {used} of the {may} that it may on {card}{lacks}"


def _figures(verdict: Verdict) -> dict[str, Any]:
    sample, entry = verdict.sample, verdict.entry
    found: dict[str, Any] = {
        "tenant": entry.key,
        "id": entry.id,
        "name": entry.title,
        "card": verdict.uuid,
        "choice": verdict.choice,
    }
    if sample is not None:
        found |= {
            "used_bytes": sample.used_bytes,
            "may_bytes": sample.may_bytes,
            "slack_bytes": sample.slack_bytes,
            "lacks": sample.lacks,
            "pids": verdict.pids[:_MOST_PIDS],
        }
    return found
