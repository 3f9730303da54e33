# SPDX-License-Identifier: Apache-2.0
"""`gpushare config`: what gpushare.yaml says, and whether it may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpushare import config, settings
from gpushare.cli import session as shared
from gpushare.cli.table import table
from gpushare.client import DaemonError, DaemonUnreachable, Refused
from gpushare.settings import show as shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushare.cli.session import Session
    from gpushare.settings.document import Document
    from gpushare.settings.show import Row

HEADINGS = ("KEY", "VALUE", "FROM")
ERROR = 1


@click.group("config", epilog="Example: gpushare config check /etc/gpushare/gpushare.yaml")
@shared.shared_options
def command() -> None:
    """Show and check the configuration of gpushared."""


@shared.command("show", example="gpushare config show --namespace team-a")
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Else the file of the gpushared that answers, else /etc/gpushare/gpushare.yaml.",
)
@click.option("--namespace", metavar="NAME", help="What holds for a namespace of Kubernetes.")
@click.option("--users", is_flag=True, help="What holds for `gpushare run` without root.")
def show(session: Session, file: Path | None, namespace: str | None, users: bool) -> None:
    """Show what holds, key by key, and which line says so.

    As the file is now: gpushared reads it when it starts, and by `gpushare config reload`. Where a
    section of a namespace or of users has nothing to say, the node's own key is shown with its
    line.
    """
    if namespace is not None and users:
        raise click.UsageError("say --namespace or --users, not both")
    document = _document(session, file)
    rows = list(_rows(document, namespace, users=users))
    data = [{"key": row.key, "value": row.value, "from": row.origin} for row in rows]
    empty = f"{document.file} bounds nothing here, and has no default: a card's room is the bound"
    session.show(data, lambda: table(HEADINGS, [_cells(row) for row in rows]) if rows else empty)


@shared.command("schema", example="gpushare config schema")
def schema(session: Session) -> None:
    """Print the JSON schema of the configuration.

    For editors: # yaml-language-server: $schema=FILE at the top of gpushare.yaml.
    """
    text = settings.schema()
    session.show(text, lambda: json.dumps(text, indent=2))


@shared.command("check", example="gpushare config check gpushare.yaml")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
def check(session: Session, file: Path | None) -> None:
    """Check a configuration, and tell every problem at once.

    Without FILE that of the gpushared that answers, else /etc/gpushare/gpushare.yaml. Each problem
    has its line, the key, the value, the rule and what to write. The exit status is 1 where there
    is one.
    """
    problems: tuple[settings.Problem, ...] = ()
    found, there = _file(session, file)
    try:
        if there:
            settings.checked(settings.text_of(found), found)
    except settings.ConfigError as error:
        problems = error.problems
        if not session.json:
            raise
    data = {"file": str(found), "problems": [vars(problem) for problem in problems]}
    session.show(data, lambda: f"{found}: ok" if there else f"{found}: not there, defaults hold")
    if problems:
        click.get_current_context().exit(ERROR)


@shared.command("reload", example="gpushare config reload")
def reload(session: Session) -> None:
    """Have gpushared read its configuration again, and say what holds anew.

    As root; `systemctl reload gpushared` does the same and says it in the log. All that changed is
    taken over, or nothing: where the file is not right, or changes what takes a restart (run_dir,
    state_dir, libraries, mount_namespace, driver, history, timing.driver and
    timing.foreign_half_life), the exit status is 3 and what was read before holds. What tenants
    were promised stays; ceilings and defaults are for those who ask from now on.
    """
    changed = session.client.reload()
    told = f"holds now: {', '.join(changed)}" if changed else "nothing has changed"
    session.show({"changed": changed}, lambda: told)


for _command in (show, schema, check, reload):
    command.add_command(_command)


def _document(session: Session, file: Path | None) -> Document:
    """Return the file that was named, else the daemon's, else the usual one; empty for none."""
    found, there = _file(session, file)
    return settings.checked(settings.text_of(found) if there else "", found)


def _file(session: Session, file: Path | None) -> tuple[Path, bool]:
    """Return the file to look at, and whether it is to be read: one that was named always is."""
    found = file or of_daemon(session) or config.DEFAULT_FILE
    return found, file is not None or found.exists()


def of_daemon(session: Session) -> Path | None:
    """Return the file that the gpushared that answers reads, None where none does."""
    try:
        said = session.client.status()["config"]
    except (DaemonUnreachable, DaemonError, Refused):
        return None
    return Path(said) if said else None


def _rows(document: Document, namespace: str | None, *, users: bool) -> Iterable[Row]:
    if users:
        return shown.section(document, settings.USERS)
    if namespace is None:
        return shown.node(document)
    name = settings.section_of(namespace, settings.namespaces(document))
    return shown.section(document, () if name is None else settings.of_namespace(name))


def _cells(row: Row) -> tuple[str, str, str]:
    return row.key, _text(row.value), row.origin


def _text(value: Any) -> str:
    """Return a value as the file would have it."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return "-" if value is None else json.dumps(value)
