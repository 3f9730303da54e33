# SPDX-License-Identifier: Apache-2.0
"""`gpushare runtime`: the runtime in an engine's configuration."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpushare import install
from gpushare.cli import session as shared
from gpushare.cli.failure import DEGRADED
from gpushare.cli.table import table
from gpushare.engines import dockerd, registration, status
from gpushare.engines.engine import ENGINES, find
from gpushare.setup import lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushare.cli.session import Session
    from gpushare.engines.answer import Answer
    from gpushare.engines.engine import Engine
    from gpushare.engines.place import Place
    from gpushare.engines.registration import Change
    from gpushare.engines.status import Status


@click.group("runtime", epilog="Example: gpushare runtime configure --runtime docker --dry-run")
@shared.shared_options
def command() -> None:
    """Register the runtime with docker, containerd, CRI-O or podman."""


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

    What the file says besides stays, and the file as it was is kept beside it. For containerd and
    CRI-O the handler is a copy of the present default's with our launcher. An engine that is a unit
    of systemd's is started after gpushared's socket from the next boot on. The running engine is
    asked afterwards whether it knows the runtime.
    """
    found = find(engine)
    place = found.place(Path("/"), config.absolute() if config else None)
    program = _installed() if launcher is None else launcher.absolute()
    changes = registration.configure(place, program, default=set_as_default)
    remarks = [*_of_launcher(program, engine), *lowlevel.differs(program, place.default)]
    if not dry_run:
        _apply(changes)
    answer = None
    if config is None and not dry_run:
        answer = _fresh(found.ask(place), program, default=set_as_default)
    _tell(session, found, place, changes, answer, remarks, dry_run=dry_run)


@shared.command("unconfigure", example="gpushare runtime unconfigure --runtime docker")
@_options
def unconfigure(session: Session, engine: str, config: Path | None, dry_run: bool) -> None:
    """Take the runtime out again.

    A file that nobody edited since is then as it was, byte for byte.
    """
    found = find(engine)
    place = found.place(Path("/"), config.absolute() if config else None)
    changes = registration.unconfigure(place)
    if not dockerd.reload_forgets(place, changes):
        place = replace(place, apply=place.restart, reloads=False)
    if not dry_run:
        _apply(changes)
    _tell(session, found, place, changes, None, [], dry_run=dry_run)


@shared.command("status", example="gpushare runtime status --runtime containerd")
@click.option(
    "--runtime", "engine", type=click.Choice(list(ENGINES)), help="This engine; else every one."
)
def show(session: Session, engine: str | None) -> None:
    """Show which engines have the runtime, and whether they know it.

    What the files say is compared with what the running engine says. The exit status is 4 where
    something is left to do: an engine that has not read its file, a launcher that is gone, an
    engine of --runtime without the runtime, or no engine with it.
    """
    engines = [find(engine)] if engine else list(ENGINES.values())
    installation = install.current()
    launcher = installation.launcher if installation else None
    found = [status.look(one, launcher) for one in engines]
    session.show([_row(one) for one in found], lambda: "\n".join(_shown(found)))
    bad = any(one.word in {"broken", "unread"} for one in found)
    if bad or not any(one.well for one in found):
        click.get_current_context().exit(DEGRADED)


command.add_command(configure)
command.add_command(unconfigure)
command.add_command(show)


def _installed() -> Path:
    installation = install.current()
    if installation is None:
        raise install.InstallError(
            f"no gpushare-runtime in {install.PREFIX}; run `gpushare setup` or use --launcher"
        )
    return installation.launcher


def _of_launcher(program: Path, engine: str) -> list[str]:
    if os.access(program, os.X_OK):
        return []
    return [f"{program} is not there; {engine} can start no container with it until it is"]


def _apply(changes: list[Change]) -> None:
    for change in changes:
        change.apply()


def _fresh(answer: Answer, program: Path, *, default: bool) -> Answer:
    """Return `answer`, as not known where the engine knows another launcher, or default."""
    other = answer.launcher is not None and answer.launcher.resolve() != program.resolve()
    if answer.known and (other or (default and answer.default is False)):
        return replace(answer, known=False)
    return answer


def _tell(
    session: Session,
    engine: Engine,
    place: Place,
    changes: list[Change],
    answer: Answer | None,
    remarks: list[str],
    *,
    dry_run: bool,
) -> None:
    remarks = [remark for change in changes for remark in change.remarks] + remarks
    needed = any(change.needed for change in changes)
    known = None if answer is None else answer.known
    due = place.apply if known is False or (needed and not known) else ""
    data = {
        "file": str(place.path),
        "files": [str(change.path) for change in changes if change.needed],
        "changed": needed and not dry_run,
        "diff": "".join(change.diff() for change in changes),
        "next": due or None,
        "reloads": place.reloads,
        "known": known,
        "remarks": remarks,
    }
    lines = [*_changed(changes, dry_run=dry_run), *(f"warn: {remark}" for remark in remarks)]
    lines += _next(engine, place, answer, due, dry_run=dry_run)
    session.show(data, lambda: "\n".join(lines))


def _changed(changes: list[Change], *, dry_run: bool) -> list[str]:
    lines: list[str] = []
    for change in changes:
        if change.needed and dry_run:
            lines.append(change.diff().rstrip("\n"))
        elif change.needed:
            lines.append(f"{change.path}: {'written' if change.after is not None else 'removed'}")
        if change.needed and not dry_run and change.backup is not None:
            lines.append(f"as it was: {registration.backup_of(change.path)}")
    return lines or [f"{changes[0].path}: nothing to change"]


def _next(
    engine: Engine, place: Place, answer: Answer | None, due: str, *, dry_run: bool
) -> list[str]:
    lines: list[str] = []
    what = "reload" if place.reloads else "restart"
    if answer is not None and answer.known:
        lines.append(f"ok: the running {place.owner or engine.name} knows it")
    elif answer is not None and answer.known is False:
        why = f": {answer.why}" if answer.why else f" yet: {what} it"
        lines.append(f"warn: registered, but the running engine does not know it{why}")
    elif answer is not None and answer.why:
        lines.append(f"not known whether the running engine has it: {answer.why}")
    if due:
        then = "containers run on"
        if place.reloads:
            then = "nothing that runs is disturbed"
        elif place.restart:
            then = "a reload takes nothing back"
        before = "the same without --dry-run, then " if dry_run else ""
        lines.append(f"next: {before}{due} ({what}: {then})")
    return lines


def _row(one: Status) -> dict[str, Any]:
    paths = {"file": one.file and str(one.file), "launcher": one.launcher and str(one.launcher)}
    return {**asdict(one), **paths, "remarks": list(one.remarks)}


def _shown(found: list[Status]) -> list[str]:
    rows = [
        (
            one.engine,
            one.word,
            str(one.file or "-"),
            "yes" if one.default else "-",
            {True: "yes", False: "no", None: "-"}[one.known],
        )
        for one in found
    ]
    lines = [table(("ENGINE", "RUNTIME", "FILE", "DEFAULT", "KNOWN"), rows)]
    alone = len(found) == 1  # asked for by name
    for one in found:
        if one.word in {"refused", "broken", "unread"} or (one.word == "absent" and alone):
            lines.append(f"{one.engine}: {one.text}")
        lines += [f"{one.engine}: {remark}" for remark in one.remarks]
        if one.fix:
            lines.append(f"next: {one.fix}")
    return lines
