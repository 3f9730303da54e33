# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup`: set up GPU sharing on this machine, or undo it."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.client import DaemonUnreachable, RequestRefused
from gpushare.engines import ENGINES, find
from gpushare.protocol.kubernetes import MODES
from gpushare.setup import InstallRecord
from gpushare.setup.optional_unit import EXPORTER, NODE, OptionalUnit
from gpushare.setup.plan import SetupError, SetupOptions, SetupStep, plan_setup, plan_undo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpushare.cli.session import Session
    from gpushare.engines import Engine
    from gpushare.protocol.kubernetes import NodeMode


@shared.command("setup", example="gpushare setup --runtime docker --dry-run")
@click.option(
    "--runtime",
    "runtimes",
    multiple=True,
    type=click.Choice(list(ENGINES)),
    help="The engine to use. Default: the first one found of docker, containerd, crio and podman.",
)
@click.option(
    "--low-level",
    metavar="RUNTIME",
    default="",
    help="The low-level runtime: runc, crun, or a path. Default: what the engine uses.",
)
@click.option("--dry-run", is_flag=True, help="Print the steps without performing them.")
@click.option("--undo", "undoing", is_flag=True, help="Remove everything that setup created.")
@click.option("--metrics", is_flag=True, help="Also set up gpushare-exporter, for Prometheus.")
@click.option(
    "--kubernetes",
    "mode",
    type=click.Choice(MODES),
    help="Also set up gpushare-node, and how pods of this node request shares.",
)
@click.option(
    "--simulate",
    metavar="PROFILE",
    help="Use simulated cards instead of a driver, for example h200.",
)
@click.option(
    "--root",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=Path("/"),
    metavar="DIR",
    help="Set up the system in DIR (an image) without starting anything.",
)
def command(
    session: Session,
    runtimes: tuple[str, ...],
    low_level: str,
    dry_run: bool,
    undoing: bool,
    metrics: bool,
    mode: NodeMode | None,
    simulate: str | None,
    root: Path,
) -> None:
    """Set up GPU sharing on this machine, or undo it.

    setup copies programs and libraries to /usr/local/lib/gpushare, finds the driver and the
    low-level runtime, writes /etc/gpushare/gpushare.yaml and the systemd units, and registers the
    runtime. Steps that are already done are skipped. gpushared is started by its socket, and the
    engine starts after that socket, so no container can request a GPU too early. --undo removes
    exactly what setup created, and restores the engine's configuration byte for byte.
    """
    root = root.resolve()
    if root == Path("/") and os.geteuid() != 0 and not dry_run:
        raise SetupError(
            "setup changes this system. Use sudo, or --dry-run to only print the steps."
        )
    made = InstallRecord.read(root)
    if undoing:
        if root == Path("/"):
            _refuse_while_used(session)
        beside = chain(EXPORTER.plan_undo(made), NODE.plan_undo(made))
        steps: Iterator[SetupStep] = chain(beside, plan_undo(made, ENGINES))
    else:
        wanted = SetupOptions(_engines(runtimes, root), simulate, low_level, mode)
        units = [*([EXPORTER] if metrics else []), *([NODE] if mode else [])]
        for _ in _plan(made, wanted, units):
            pass  # raises what prevents the setup before the first step is performed
        steps = _plan(made, wanted, units)
    done = _carry_out(session, steps, dry_run=dry_run)
    if session.json:
        session.show(done, lambda: "")
    elif not done:
        click.echo("gpushare is not set up on this machine")
    elif dry_run:
        click.echo("nothing was changed; next: run it without --dry-run")
    elif not undoing:
        click.echo("next: gpushare doctor")


def _plan(
    made: InstallRecord, wanted: SetupOptions, units: Sequence[OptionalUnit]
) -> Iterator[SetupStep]:
    yield from plan_setup(made, wanted)
    for unit in units:
        yield from unit.plan(made)


def _engines(names: tuple[str, ...], root: Path) -> tuple[Engine, ...]:
    if names:
        return tuple(find(name) for name in names)
    # Docker brings containerd, with its CRI plugin disabled: only Docker must be registered.
    present = [engine for engine in ENGINES.values() if engine.is_present(root)]
    return tuple(present[:1])


def _refuse_while_used(session: Session) -> None:
    try:
        tenants = session.client.tenants()
    except DaemonUnreachable:
        return
    if tenants:
        names = ", ".join(tenant["name"] or tenant["id"][:12] for tenant in tenants)
        raise RequestRefused(f"these containers still have a GPU: {names}. Stop them first.")


def _carry_out(
    session: Session, steps: Iterable[SetupStep], *, dry_run: bool
) -> list[dict[str, object]]:
    """Perform each step before the next is computed; return what was done."""
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


def _word(step: SetupStep, *, dry_run: bool) -> str:
    if step.yours:
        return "next"
    if step.do is None:
        return "ok"
    return "would" if dry_run else "do"
