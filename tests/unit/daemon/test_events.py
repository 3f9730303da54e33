# SPDX-License-Identifier: Apache-2.0
"""What is logged and what gpushare/events.py lists are the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import gpushare.daemon
from gpushare.cli.history import TEXTS
from gpushare.daemon.audit.audit import _figures
from gpushare.daemon.audit.judge import Verdict
from gpushare.daemon.policy import EscalationState, QuotaSample
from gpushare.events import EVENTS, KEPT

from . import fakes

SOURCES = Path(gpushare.daemon.__file__).parent


def logged() -> Iterator[tuple[str, str]]:
    """Yield (where, event) for each call of `log`."""
    for source in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "log":
                event = node.args[0]
                where = f"{source.relative_to(SOURCES)}:{node.lineno}"
                assert isinstance(event, ast.Constant), f"{where}: an event's name is a literal"
                yield where, str(event.value)


def test_every_event_that_is_logged_is_listed() -> None:
    unknown = [(where, event) for where, event in logged() if event not in EVENTS]
    assert unknown == []


def test_every_event_that_is_listed_is_logged() -> None:
    assert sorted(EVENTS.keys() - {event for _, event in logged()}) == []


def test_every_kept_name_is_an_event() -> None:
    assert sorted(KEPT - EVENTS.keys()) == []


def test_event_names_are_words_with_hyphens() -> None:
    assert [name for name in EVENTS if not re.fullmatch(r"[a-z]+(-[a-z]+)*", name)] == []


def test_figures_of_a_container_over_quota_are_those_that_history_shows() -> None:
    sample = QuotaSample(used_bytes=6, may_bytes=4)
    verdict = Verdict(fakes.entry(), fakes.card(0).uuid, EscalationState(), "freeze", sample)
    fields = _figures(verdict).keys() | {"reason"}
    for event in ("over-quota-detected", "over-quota-warned", "over-quota-frozen"):
        assert {*re.findall(r"{(\w+)}", TEXTS[event])} <= fields, event
