# SPDX-License-Identifier: Apache-2.0
"""`gpushare rules`: the alert rules that go with the metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import yaml

import gpushare
from gpushare.cli import session as shared
from gpushare.errors import UserError

if TYPE_CHECKING:
    from gpushare.cli.session import Session

NAME: Final = "gpushare.rules.yaml"


class NoRules(UserError):
    """The file is not where the package has it."""


@click.group("rules", epilog="Example: gpushare rules export")
@shared.shared_options
def command() -> None:
    """Alert rules for Prometheus."""


@shared.command("export", example="gpushare rules export")
def export(session: Session) -> None:
    """Print the alert rules, to be put where rule_files in prometheus.yml finds them.

    Each has a severity (critical, warning, info), a summary and what to do. They rest on the
    families of docs/reference/metrics.md alone.
    """
    text = rules_text()
    session.show(yaml.safe_load(text) if session.json else None, lambda: text.rstrip("\n"))


command.add_command(export)


def rules_text() -> str:
    """Return the rules, from the source tree or from beside the installed package."""
    installed = [Path(folder) for folder in gpushare.__path__]
    for place in (Path(__file__).parents[2] / "configs/prometheus", *installed):
        if (place / NAME).is_file():
            return (place / NAME).read_text(encoding="utf-8")
    raise NoRules(f"{installed[0] / NAME} is not there; install gpushare again")
