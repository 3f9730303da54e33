# SPDX-License-Identifier: Apache-2.0
"""`gpushare runtime`: register the runtime in an engine's configuration."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpushare import install
from gpushare.cli import session as shared
from gpushare.cli.text import table
from gpushare.engines import ENGINES, config_files, docker_config, engine_status, find
from gpushare.errors import ExitStatus
from gpushare.host import init_system
from gpushare.setup import InstallRecord, low_level_runtime
from gpushare.setup.plan import record_registration

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushare.cli.session import Session
    from gpushare.engines import Engine, EngineStatus
    from gpushare.engines.config_files import ConfigLocation, FileChange
    from gpushare.engines.query import RuntimeReport


@shared.group("runtime")
def command() -> None:
    """Register the runtime with Docker, containerd, CRI-O or Podman."""


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--dry-run", is_flag=True, help="Print the change as a diff without making it."
        ),
        click.option(
            "--config",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="The engine's configuration file. Default: the engine's usual one.",
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
@click.option("--set-as-default", is_flag=True, help="Make gpushare the engine's default runtime.")
@click.option(
    "--launcher",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Path of gpushare-runtime. Default: the one that `gpushare setup` installed.",
)
def configure(
    session: Session,
    engine: str,
    config: Path | None,
    dry_run: bool,
    set_as_default: bool,
    launcher: Path | None,
) -> None:
    """Register the runtime in an engine's configuration.

    Other settings of the file are not changed, and a copy of the original file is kept next to it.
    For containerd and CRI-O, the handler is a copy of the current default's, with gpushare-runtime.
    If the engine is a systemd unit, it starts after the socket of gpushared from the next boot on.
    Afterwards, the command asks the running engine whether it has loaded the runtime.
    """
    chosen = find(engine)
    place = chosen.locate(Path("/"), config.absolute() if config else None)
    program = _installed() if launcher is None else launcher.absolute()
    changes = config_files.configure(place, program, default=set_as_default)
    remarks = [
        *_of_launcher(program, engine),
        *_low_level_remarks(program, place.default),
    ]
    if not dry_run:
        if config is None:  # a file of the user's choice is also theirs to restore
            _record(chosen.name, place, program, changes)
        _apply(changes)
    answer = None
    if config is None and not dry_run:
        answer = _fresh(chosen.query(place), program, default=set_as_default)
    _report(session, chosen, place, changes, answer, remarks, dry_run=dry_run)


@shared.command("unconfigure", example="gpushare runtime unconfigure --runtime docker")
@_options
def unconfigure(session: Session, engine: str, config: Path | None, dry_run: bool) -> None:
    """Remove the runtime from an engine's configuration.

    If the file was not edited in the meantime, it is restored byte for byte.
    """
    chosen = find(engine)
    place = chosen.locate(Path("/"), config.absolute() if config else None)
    changes = config_files.unconfigure(place)
    if not docker_config.reload_suffices(place, changes):
        place = replace(place, apply=place.restart, reloads=False)
    if not dry_run:
        _apply(changes)
    _report(session, chosen, place, changes, None, [], dry_run=dry_run)


@shared.command("status", example="gpushare runtime status --runtime containerd")
@click.option(
    "--runtime",
    "engine",
    type=click.Choice(list(ENGINES)),
    help="The engine to show. Default: all engines.",
)
def show(session: Session, engine: str | None) -> None:
    """Show which engines have the runtime registered and loaded.

    The command compares the configuration files with the running engines. The exit status is 4 if
    an engine has not read its file, a launcher is missing, the engine of --runtime does not have
    the runtime, or no engine has it.
    """
    engines = [find(engine)] if engine else list(ENGINES.values())
    installation = install.current()
    launcher = installation.launcher if installation else None
    statuses = [engine_status(one, launcher) for one in engines]
    session.show([_row(status) for status in statuses], lambda: "\n".join(_shown(statuses)))
    bad = any(one.word in {"broken", "unread"} for one in statuses)
    if bad or not any(one.well for one in statuses):
        click.get_current_context().exit(ExitStatus.DEGRADED)


command.add_command(configure)
command.add_command(unconfigure)
command.add_command(show)


def _installed() -> Path:
    installation = install.current()
    if installation is None:
        raise install.InstallError(
            f"no gpushare-runtime in {install.PREFIX}. Run `gpushare setup`, or use --launcher."
        )
    return installation.launcher


def _low_level_remarks(launcher: Path, default: str | None) -> list[str]:
    """Return a warning where engine and launcher differ, unless the user chose it with setup."""
    if InstallRecord.read().low_level:
        return []
    return low_level_runtime.runtime_mismatch(launcher, default)


def _of_launcher(program: Path, engine: str) -> list[str]:
    if os.access(program, os.X_OK):
        return []
    return [f"{program} does not exist. {engine} cannot start containers with it until it does."]


def _record(engine: str, place: ConfigLocation, program: Path, changes: list[FileChange]) -> None:
    """Have gpushare-undo restore these files too, if setup has left it."""
    record = InstallRecord.read()
    if record.engines:
        record_registration(record, engine, place, program, changes)


def _apply(changes: list[FileChange]) -> None:
    for change in changes:
        change.apply()


def _fresh(answer: RuntimeReport, program: Path, *, default: bool) -> RuntimeReport:
    """Return `answer`; not loaded if the engine has another launcher or default runtime loaded."""
    other = answer.launcher is not None and answer.launcher.resolve() != program.resolve()
    if answer.known and (other or (default and answer.default is False)):
        return replace(answer, known=False)
    return answer


def _report(
    session: Session,
    engine: Engine,
    place: ConfigLocation,
    changes: list[FileChange],
    answer: RuntimeReport | None,
    remarks: list[str],
    *,
    dry_run: bool,
) -> None:
    remarks = [remark for change in changes for remark in change.remarks] + remarks
    needed = any(change.needed for change in changes)
    known = None if answer is None else answer.known
    is_due = known is False or (needed and not known)
    due = init_system.advice(place.apply) if is_due else ""
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


def _changed(changes: list[FileChange], *, dry_run: bool) -> list[str]:
    lines: list[str] = []
    for change in changes:
        if change.needed and dry_run:
            lines.append(change.diff().rstrip("\n"))
        elif change.needed:
            lines.append(f"{change.path}: {'written' if change.after is not None else 'removed'}")
        if change.needed and not dry_run and change.backup is not None:
            lines.append(f"original: {config_files.backup_path(change.path)}")
    return lines or [f"{changes[0].path}: nothing to change"]


def _next(
    engine: Engine, place: ConfigLocation, answer: RuntimeReport | None, due: str, *, dry_run: bool
) -> list[str]:
    lines: list[str] = []
    what = "reload" if place.reloads else "restart"
    if answer is not None and answer.known:
        lines.append(f"ok: the running {place.owner or engine.name} has loaded it")
    elif answer is not None and answer.known is False:
        why = f": {answer.reason}" if answer.reason else f" yet: {what} it"
        lines.append(f"warn: registered, but the running engine has not loaded it{why}")
    elif answer is not None and answer.reason:
        lines.append(f"cannot determine whether the running engine has loaded it: {answer.reason}")
    if due:
        then = "containers keep running"
        if place.reloads:
            then = "running containers are not affected"
        elif place.restart:
            then = "a reload does not remove a runtime"
        before = "the same without --dry-run, then " if dry_run else ""
        lines.append(f"next: {before}{due} ({what}: {then})")
    return lines


def _row(status: EngineStatus) -> dict[str, Any]:
    paths = {
        "file": status.file and str(status.file),
        "launcher": status.launcher and str(status.launcher),
    }
    return {**asdict(status), **paths, "remarks": list(status.remarks)}


def _shown(statuses: list[EngineStatus]) -> list[str]:
    rows = [
        (
            one.engine,
            one.word,
            str(one.file or "-"),
            "yes" if one.default else "-",
            {True: "yes", False: "no", None: "-"}[one.known],
        )
        for one in statuses
    ]
    lines = [table(("ENGINE", "RUNTIME", "CONFIG FILE", "DEFAULT", "LOADED"), rows)]
    by_name = len(statuses) == 1
    for status in statuses:
        if status.word in {"refused", "broken", "unread"} or (status.word == "absent" and by_name):
            lines.append(f"{status.engine}: {status.text}")
        lines += [f"{status.engine}: {remark}" for remark in status.remarks]
        if status.fix:
            lines.append(f"next: {status.fix}")
    return lines
