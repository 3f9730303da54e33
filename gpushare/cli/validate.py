# SPDX-License-Identifier: Apache-2.0
"""`gpushare validate`: what is wrong with manifests, before anybody starts them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.table import printable
from gpushare.manifest import STDIN, ManifestError, read
from gpushare.manifest.check import ERROR, INFO, WARNING, Checked, check, unreadable
from gpushare.marks import at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.session import Session

PROBLEMS: Final = 1
WARNINGS: Final = 4
SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


@shared.command("validate", example="gpushare validate deploy/ compose.yaml")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--strict/--lenient",
    default=True,
    help="Hold every vendor's own rules, as its product does; or only what a node here refuses.",
)
@click.option("--quiet", "-q", is_flag=True, help="Without what is only to be known (info).")
def command(session: Session, files: tuple[str, ...], strict: bool, quiet: bool) -> None:
    """Check what manifests ask of GPUs, and tell every problem at once.

    FILE is one of Kubernetes, of docker compose, a task definition of ECS, a container's
    config.json, a device plugin's configuration; - is standard input, and of a folder every .yaml,
    .yml and .json is looked at. Each problem is FILE:LINE:COLUMN: KEY: "VALUE" RULE; FIX. What
    reaches no container runtime is told as info and is no problem. No daemon is asked.

    The exit status is 1 where there is a problem, and 4 where --strict has only warnings.
    """
    checked = [_checked(path, strict=strict) for path in _paths(files)]
    levels = (ERROR, WARNING) if quiet else (ERROR, WARNING, INFO)
    session.show(
        {"strict": strict, "files": [_data(one, levels) for one in checked]},
        lambda: printable_lines(checked, levels),
    )
    if any(one.count(ERROR) for one in checked):
        click.get_current_context().exit(PROBLEMS)
    if strict and any(one.count(WARNING) for one in checked):
        click.get_current_context().exit(WARNINGS)


def _paths(files: tuple[str, ...]) -> list[str]:
    """Return the files to look at, those of folders in order."""
    found: list[str] = []
    for name in files:
        path = Path(name)
        if name == STDIN or not path.is_dir():
            found.append(name)
            continue
        within = sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES and one.is_file())
        if not within:
            raise click.UsageError(f"{name} has no .yaml, .yml or .json in it")
        found += map(str, within)
    return list(dict.fromkeys(found))


def _checked(path: str, *, strict: bool) -> Checked:
    try:
        return check(read(path), strict=strict)
    except ManifestError as error:
        return unreadable(error)


def _data(checked: Checked, levels: tuple[str, ...]) -> dict[str, Any]:
    return {
        "file": checked.path,
        "containers": checked.containers,
        "asking": checked.asking,
        "findings": [asdict(one) for one in checked.findings if one.level in levels],
    }


def printable_lines(checked: list[Checked], levels: tuple[str, ...]) -> str:
    """Return a line for each finding, and one for each file."""
    return "\n".join(line for one in checked for line in _lines(one, levels))


def _lines(checked: Checked, levels: tuple[str, ...]) -> Iterator[str]:
    for finding in checked.findings:
        if finding.level in levels:
            yield f"{printable(at(checked.path, finding.line, finding.column))}: {finding}"
    looked = f"{_number(checked.containers, 'container')}, {checked.asking} asking for a GPU"
    problems, warnings = checked.count(ERROR), checked.count(WARNING)
    told = [
        _number(count, what)
        for count, what in ((problems, "problem"), (warnings, "warning"))
        if count
    ]
    yield f"{printable(checked.path)}: {', '.join(told) or 'ok'} ({looked})"


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
