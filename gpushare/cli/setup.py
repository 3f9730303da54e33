# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup`: from an installed package to an engine that shares the cards, and back."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.client import DaemonUnreachable, Refused
from gpushare.engines.engine import ENGINES, find
from gpushare.setup import exporter
from gpushare.setup.made import Made
from gpushare.setup.plan import SetupError, Step, Wanted, plan, undo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushare.cli.session import Session
    from gpushare.engines.engine import Engine


@shared.command("setup", example="gpushare setup --runtime docker --dry-run")
@click.option(
    "--runtime",
    "runtimes",
    multiple=True,
    type=click.Choice(list(ENGINES)),
    help="The engine to register with; else the first that is there of docker, containerd, "
    "crio and podman.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done; do nothing.")
@click.option("--undo", "undoing", is_flag=True, help="Take away what setup made.")
@click.option("--metrics", is_flag=True, help="gpushare-exporter too, for Prometheus.")
@click.option("--simulate", metavar="PROFILE", help="Simulated cards as the driver, e.g. h200.")
@click.option(
    "--root",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=Path("/"),
    metavar="DIR",
    help="Set up the system beneath DIR (an image), starting nothing.",
)
def command(
    session: Session,
    runtimes: tuple[str, ...],
    dry_run: bool,
    undoing: bool,
    metrics: bool,
    simulate: str | None,
    root: Path,
) -> None:
    """Make this machine share its cards, or undo that.

    What is done already is left as it is. Copies programs and libraries to /usr/local/lib/gpushare,
    finds the driver and the low-level runtime, writes /etc/gpushare/gpushare.yaml and the systemd
    units, and registers the runtime. gpushared is started by its socket, which the engine is
    started after: no container that asks for a GPU comes too early. --undo takes exactly that away,
    and an engine's configuration is as it was, byte for byte.
    """
    root = root.resolve()
    if root == Path("/") and os.geteuid() != 0 and not dry_run:
        raise SetupError("setup writes to this system; use sudo, or see --dry-run")
    made = Made.read(root)
    if undoing:
        if root == Path("/"):
            _refuse_while_used(session)
        steps = chain(exporter.undo(made), undo(made, ENGINES))
    else:
        wanted = Wanted(_engines(runtimes, root), simulate)
        for _ in chain(plan(made, wanted), exporter.steps(made) if metrics else ()):
            pass  # what is in the way is said before anything is done
        steps = chain(plan(made, wanted), exporter.steps(made) if metrics else ())
    done = _carry_out(session, steps, dry_run=dry_run)
    if session.json:
        session.show(done, lambda: "")
    elif not done:
        click.echo("nothing was set up here")
    elif dry_run:
        click.echo("nothing was changed; next: the same without --dry-run")
    elif not undoing:
        click.echo("next: gpushare doctor")


def _engines(names: tuple[str, ...], root: Path) -> tuple[Engine, ...]:
    if names:
        return tuple(find(name) for name in names)
    # Docker's containerd is there too; its CRI is off, so docker is who must know.
    present = [engine for engine in ENGINES.values() if engine.present(root)]
    return tuple(present[:1])


def _refuse_while_used(session: Session) -> None:
    try:
        tenants = session.client.tenants()
    except DaemonUnreachable:
        return
    if tenants:
        names = ", ".join(tenant["name"] or tenant["id"][:12] for tenant in tenants)
        raise Refused(f"these still have a share: {names}; stop them first")


def _carry_out(
    session: Session, steps: Iterable[Step], *, dry_run: bool
) -> list[dict[str, object]]:
    """Do each step before the next is looked at; return what was done."""
    done: list[dict[str, object]] = []
    for step in steps:
        word = _word(step, dry_run=dry_run)
        if not session.json:
            click.echo(f"{word:<6}{step.text}")
            if dry_run and step.detail:
                click.echo(step.detail.rstrip("\n"))
        if step.do is not None and not dry_run:
            step.do()
        needed = step.do is not None
        done.append({"step": step.text, "needed": needed, "yours": step.yours, "diff": step.detail})
    return done


def _word(step: Step, *, dry_run: bool) -> str:
    if step.yours:
        return "next"
    if step.do is None:
        return "ok"
    return "would" if dry_run else "do"
