# SPDX-License-Identifier: Apache-2.0
"""`gpushare report`: what the metrics history and the events of this node add up to."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpushare import config as configuration
from gpushare.cli import session as shared
from gpushare.cli.history import parse_duration
from gpushare.cli.text import terminal_table
from gpushare.client import DaemonUnreachable
from gpushare.errors import ErrorCode, UserError
from gpushare.events_file import read_events
from gpushare.history import FOLDER
from gpushare.history.reader import HistoryReader, HistoryUnreadable
from gpushare.history.reports import LABELS, REPORTS, ReportSource, make_report
from gpushare.history.reports.formats import FORMATS, period_text, total_cells

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpushare.cli.session import Session
    from gpushare.config import Config
    from gpushare.history.reports.columns import ReportTable
    from gpushare.protocol import HistoryEvent

TABLE: Final = "table"


def parse_time(ctx: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Return seconds since the epoch of a local time, or of a duration ago."""
    if text is None:
        return None
    try:
        return dt.datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        pass
    try:
        return time.time() - parse_duration(ctx, parameter, text)
    except click.BadParameter:
        raise click.BadParameter(
            f"{text!r} is neither a duration nor a time. Use, for example, 1h, 7d, 2026-01-31 or "
            "2026-01-31T09:00.",
            ctx,
            parameter,
        ) from None


@shared.command("report")
@click.argument("report", type=click.Choice(list(REPORTS)))
@click.option(
    "--since",
    callback=parse_time,
    metavar="TIME",
    default="24h",
    show_default=True,
    help="Begin: 1h or 7d ago, or a local time: 2026-01-31, 2026-01-31T09:00.",
)
@click.option("--until", callback=parse_time, metavar="TIME", help="End. Default: now.")
@click.option(
    "--by",
    metavar="WHAT",
    help=f"Group the rows by {', '.join(LABELS)} or label:KEY. Default: of usage, container; of "
    "peak, card; of chargeback, namespace.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([TABLE, *FORMATS]),
    default=TABLE,
    show_default=True,
    help="What to print.",
)
@click.option(
    "--below",
    type=click.FloatRange(0, 100, min_open=True),
    default=30,
    show_default=True,
    metavar="PERCENT",
    help="waste: the part of a request below which it is wasted.",
)
@click.option(
    "--for",
    "least",
    callback=parse_duration,
    metavar="TIME",
    default="1h",
    show_default=True,
    help="waste, idle: how long a container must be below, or idle, to be listed.",
)
@shared.config_option("The configuration with the prices and state_dir.")
def command(
    session: Session,
    report: str,
    since: float,
    until: float | None,
    by: str | None,
    form: str,
    below: float,
    least: float,
    file: Path | None,
) -> None:
    """Report on usage, waste, costs and incidents.

    \b
    usage       What containers requested and used.
    waste       Containers that used little of their request, and for how long.
    compliance  Containers that were over their allocation, and what was done.
    oom         The memory before each refused allocation and each crash.
    peak        The most that was needed at one time, to plan capacity.
    chargeback  GPU time and memory at the prices of gpushare.yaml.
    idle        Containers that held memory and did not use their cards.

    The reports are made from the metrics history and the recorded events, also if gpushared does
    not run; then, oom and compliance require root.
    """  # noqa: D301 - click keeps the lines of a paragraph that begins so
    end = time.time() if until is None else until
    if since >= end:
        raise click.UsageError("--since must be before --until")
    config = configuration.load(file or session.config_file())
    with _reader(config) as reader:
        source = ReportSource(
            reader,
            since,
            end,
            lambda events: _events(session, config, since, end, events),
            config.prices,
            below / 100,
            least,
        )
        table = make_report(report, source, by or "")
    form = "json" if session.json else form
    click.echo(_text(table) if form == TABLE else FORMATS[form](table), nl=False)
    if not table.rows and form == TABLE:
        click.echo(f"nothing to report from {period_text(table)}", err=True)


def _reader(config: Config) -> HistoryReader:
    try:
        return HistoryReader(config.state_dir / FOLDER)
    except HistoryUnreadable as error:
        if error.code is not ErrorCode.NOT_FOUND or config.metrics_days:
            raise
        fix = "Set metrics_history.retention_days in gpushare.yaml."
        raise UserError(
            f"no figures are kept (metrics_history.retention_days is 0). {fix}",
            code=ErrorCode.NOT_FOUND,
            fix=fix,
        ) from error


def _events(
    session: Session, config: Config, since: float, until: float, events: Collection[str]
) -> list[HistoryEvent]:
    """Return events from their file, or from gpushared if the user cannot open the file."""
    try:
        return read_events(config.state_dir, since, until, events)
    except FileNotFoundError:
        return []  # history.retention_days is 0
    except PermissionError:
        pass
    try:
        recent = session.client.history("", since)
        return [event for event in recent if event["event"] in events and event["time"] < until]
    except DaemonUnreachable as error:
        raise UserError(
            "gpushared does not run, and only root can read its events. Use sudo.",
            code=ErrorCode.FORBIDDEN,
            fix="Use sudo.",
        ) from error


def _text(report: ReportTable) -> str:
    """Return the report for a terminal."""
    if not report.rows:
        return ""
    rows = [report.cells(row) for row in report.rows]
    if report.total:
        rows.append(total_cells(report))
    return "\n".join([_table(report, rows), *(f"note: {note}" for note in report.notes), ""])


def _table(report: ReportTable, rows: list[list[str]]) -> str:
    headings = {column: column.heading.upper() for column in report.columns}
    dropped = [headings[one] for one in reversed(report.columns) if one.optional]
    return terminal_table(list(headings.values()), rows, dropped, lambda *_: "")
