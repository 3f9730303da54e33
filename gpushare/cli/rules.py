# SPDX-License-Identifier: Apache-2.0
"""`gpushare rules`: the Prometheus alerting rules for the metrics."""

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
    """The file of the rules is missing from the package."""


@click.group("rules", epilog="Example: gpushare rules export")
@shared.shared_options
def command() -> None:
    """Print Prometheus alerting rules."""


@shared.command("export", example="gpushare rules export")
def export(session: Session) -> None:
    """Print the alerting rules, for a file that rule_files in prometheus.yml includes.

    Each rule has a severity (critical, warning or info), a summary and a fix. The rules use only
    the metrics of docs/reference/metrics.md.
    """
    text = rules_text()
    session.show(yaml.safe_load(text) if session.json else None, lambda: text.rstrip("\n"))


command.add_command(export)


def rules_text() -> str:
    """Return the rules, from the source tree or the installed package."""
    installed = [Path(folder) for folder in gpushare.__path__]
    for place in (Path(__file__).parents[2] / "configs/prometheus", *installed):
        if (place / NAME).is_file():
            return (place / NAME).read_text(encoding="utf-8")
    raise NoRules(f"{installed[0] / NAME} does not exist. Install gpushare again.")
