# SPDX-License-Identifier: Apache-2.0
"""`gpushare runtime`: the runtime in an engine's configuration."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpushare import install
from gpushare.cli import session as shared
from gpushare.engines import registration
from gpushare.engines.engine import ENGINES, find

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushare.cli.session import Session
    from gpushare.engines.engine import Engine
    from gpushare.engines.registration import Change


@click.group("runtime", epilog="Example: gpushare runtime configure --runtime docker --dry-run")
@shared.shared_options
def command() -> None:
    """Register the runtime with docker or containerd."""


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--dry-run", is_flag=True, help="Show the change as a diff; make none."),
        click.option(
            "--config",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="The engine's configuration, where it is not the usual file.",
        ),
        click.option(
            "--runtime",
            "engine",
            required=True,
            type=click.Choice(list(ENGINES)),
            help="The engine.",
        ),
    ):
        function = option(function)
    return function


@shared.command(
    "configure", example="gpushare runtime configure --runtime containerd --set-as-default"
)
@_options
@click.option("--set-as-default", is_flag=True, help="Containers get it without asking.")
@click.option(
    "--launcher",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="gpushare-runtime, where it is not the one that `gpushare setup` installed.",
)
def configure(
    session: Session,
    engine: str,
    config: Path | None,
    dry_run: bool,
    set_as_default: bool,
    launcher: Path | None,
) -> None:
    """Register the runtime in the engine's configuration.

    What the file says besides stays, and the file as it was is kept beside it. For containerd the
    handler is a copy of the present default's with our launcher.
    """
    found = find(engine)
    path = config or found.configuration()
    program = _installed() if launcher is None else launcher.absolute()
    change = registration.configure(found, path, program, default=set_as_default)
    if not os.access(program, os.X_OK):
        remark = f"{program} is not there; {engine} can start no container with it until it is"
        change = replace(change, remarks=(*change.remarks, remark))
    _carry_out(session, found, change, dry_run=dry_run)


@shared.command("unconfigure", example="gpushare runtime unconfigure --runtime docker")
@_options
def unconfigure(session: Session, engine: str, config: Path | None, dry_run: bool) -> None:
    """Take the runtime out again.

    A file that nobody edited since is then as it was, byte for byte.
    """
    found = find(engine)
    change = registration.unconfigure(found, config or found.configuration())
    _carry_out(session, found, change, dry_run=dry_run)


command.add_command(configure)
command.add_command(unconfigure)


def _installed() -> Path:
    installation = install.current()
    if installation is None:
        raise install.InstallError(
            f"no gpushare-runtime in {install.PREFIX}; run `gpushare setup` or use --launcher"
        )
    return installation.launcher


def _carry_out(session: Session, engine: Engine, change: Change, *, dry_run: bool) -> None:
    if not dry_run:
        change.apply()
    data = {
        "file": str(change.path),
        "changed": change.needed and not dry_run,
        "diff": change.diff(),
        "next": engine.apply if change.needed else None,
        "remarks": list(change.remarks),
    }
    session.show(data, lambda: "\n".join(_told(engine, change, dry_run=dry_run)))


def _told(engine: Engine, change: Change, *, dry_run: bool) -> list[str]:
    if not change.needed:
        return [f"{change.path}: nothing to change"]
    lines = [change.diff().rstrip("\n")] if dry_run else [f"{change.path}: written"]
    if not dry_run and change.backup is not None:
        lines.append(f"as it was: {registration.backup_of(change.path)}")
    lines += [f"warn: {remark}" for remark in change.remarks]
    lines.append(f"next: {'(nothing was changed) ' if dry_run else ''}{engine.apply}")
    return lines
