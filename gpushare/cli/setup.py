# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup`: set up GPU sharing on this machine, or undo it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpushare import setup
from gpushare.cli import session as shared
from gpushare.engines import ENGINES, find
from gpushare.errors import ErrorCode
from gpushare.install import CURRENT, PREFIX, Installation
from gpushare.protocol.kubernetes import MODES
from gpushare.setup import InstallRecord, SetupError
from gpushare.setup.plan import EXPORTER, NODE, SIMULATOR, OptionalUnit, SetupOptions, plan_setup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpushare.cli.session import Session
    from gpushare.engines import Engine
    from gpushare.errors import ErrorCode
    from gpushare.protocol.kubernetes import NodeMode
    from gpushare.setup import SetupStep


@shared.command("setup")
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
@click.option("--again", is_flag=True, help="Repeat the last setup, for example after an upgrade.")
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
    "--cards",
    type=click.IntRange(1, 16),
    help="With --simulate: the number of cards. Default: 1.",
)
@click.option(
    "--driver-later",
    is_flag=True,
    help="Do not stop if there is no NVIDIA driver yet: gpushared loads it when it is there.",
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
    again: bool,
    metrics: bool,
    mode: NodeMode | None,
    simulate: str | None,
    cards: int | None,
    driver_later: bool,
    root: Path,
) -> None:
    """Set up GPU sharing on this machine, or undo it.

    setup copies programs and libraries to /usr/local/lib/gpushare, finds the driver and the
    low-level runtime, writes /etc/gpushare/gpushare.yaml and the systemd units, and registers the
    runtime. Steps that are already done are skipped. --again repeats what earlier setups did, and
    does nothing on a machine that is not set up. gpushared is started by its socket, and the
    engine starts after that socket, so no container can request a GPU too early. --undo runs
    gpushare-undo, which setup leaves in /usr/local/sbin, and which also works after gpushare is
    removed: it removes exactly what setup created, and restores the engine's configuration byte for
    byte, or without gpushare's part if you have edited it since.
    """
    root = root.resolve()
    if root == Path("/") and os.geteuid() != 0 and not dry_run:
        raise SetupError(
            "setup changes this system. Use sudo, or --dry-run to only print the steps.",
            code=ErrorCode.FORBIDDEN,
        )
    if cards is not None and simulate is None:
        raise click.UsageError("--cards is for simulated cards. Add --simulate h200")
    if undoing:
        done = _undo(session, root, dry_run=dry_run)
    else:
        record = InstallRecord.read(root)
        units = [*([EXPORTER] if metrics else []), *([NODE] if mode else [])]
        if again:
            runtimes = (*record.engines, *runtimes)
            units += [unit for unit in (EXPORTER, NODE) if unit.is_in(record) and unit not in units]
            if simulate is None and str(SIMULATOR) in record.trees:
                simulate = ""  # the cards that exist, whatever their profile
        wanted = SetupOptions(
            _engines(runtimes, root),
            simulate,
            low_level,
            mode,
            cards=cards or 1,
            driver_later=driver_later,
        )
        done = []
        if not again or record.files:
            for _ in _plan(record, wanted, units):
                pass  # raises what prevents the setup before the first step is performed
            done = _carry_out(session, _plan(record, wanted, units), dry_run=dry_run)
    if session.json:
        session.show(done, lambda: "")
    elif not done:
        click.echo("gpushare is not set up on this machine")
    elif dry_run:
        click.echo("nothing was changed; next: run it without --dry-run")
    elif not undoing:
        click.echo(_next(wanted))


#: The command to try after setup, by engine; "": without one, a command without a container.
_TRY: Final = {
    "docker": "docker run --rm --runtime=gpushare -e GPUSHARE_MEMORY=1GiB {container}",
    "podman": "podman run --rm --runtime=gpushare -e GPUSHARE_MEMORY=1GiB {container}",
    "containerd": "gpushare doctor --k8s, and a pod with runtimeClassName: gpushare",
    "crio": "gpushare doctor --k8s, and a pod with runtimeClassName: gpushare",
    "": "gpushare run --memory 1GiB -- {program}",
}


def _next(wanted: SetupOptions) -> str:
    """Return what to try, for the first engine."""
    container, program = "IMAGE nvidia-smi", "nvidia-smi"
    if wanted.simulate is not None:  # the simulated driver has no nvidia-smi
        probe = Installation(PREFIX / CURRENT).probe
        container, program = f"-v {probe}:/probe:ro debian /probe info", f"{probe} info"
    tried = _TRY[wanted.engines[0].name if wanted.engines else ""]
    return f"next: gpushare doctor\nthen: {tried.format(container=container, program=program)}"


def _plan(
    record: InstallRecord, wanted: SetupOptions, units: Sequence[OptionalUnit]
) -> Iterator[SetupStep]:
    yield from plan_setup(record, wanted)
    for unit in units:
        yield from unit.plan(record)


def _engines(names: tuple[str, ...], root: Path) -> tuple[Engine, ...]:
    if names:
        return tuple(find(name) for name in names)
    # Docker brings containerd, with its CRI plugin disabled: only Docker must be registered.
    present = [engine for engine in ENGINES.values() if engine.is_present(root)]
    return tuple(present[:1])


def _undo(session: Session, root: Path, *, dry_run: bool) -> list[dict[str, object]]:
    """Run gpushare-undo; return what it did."""
    done: list[dict[str, object]] = []
    for step in setup.undo(root, dry_run=dry_run):
        if not session.json:
            click.echo("\n".join([f"{step.word:<6}{step.text}", *step.diff]))
        row = _row(step.text, step.word in {"do", "would"}, step.word == "next", step.diff)
        done.append(row)
    return done


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
        done.append(_row(step.text, step.do is not None, step.yours, step.detail.splitlines()))
    return done


def _row(text: str, needed: bool, yours: bool, diff: list[str]) -> dict[str, object]:
    shown = "".join(f"{line}\n" for line in diff)
    return {"step": text, "needed": needed, "yours": yours, "diff": shown}


def _word(step: SetupStep, *, dry_run: bool) -> str:
    if step.yours:
        return "next"
    if step.do is None:
        return "ok"
    return "would" if dry_run else "do"
