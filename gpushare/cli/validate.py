# SPDX-License-Identifier: Apache-2.0
"""`gpushare validate`: check the GPU requests in manifests."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.text import count, printable
from gpushare.errors import ErrorCode, ExitStatus, UserError
from gpushare.manifest import read
from gpushare.manifest.check import Checked, check, report_unreadable
from gpushare.manifest.compose_file import device_request
from gpushare.manifest.model import (
    ERROR,
    INFO,
    STDIN,
    WARNING,
    ManifestError,
    ManifestFile,
    ManifestFinding,
    node_finding,
)
from gpushare.text_position import Fault, at
from gpushare.yaml_nodes import MAX_VALUES, find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.session import Session
    from gpushare.compatibility.model import ModelFormats

SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
_MOST_VALUES: Final = 3 * MAX_VALUES


@shared.command("validate")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", shell_complete=shared.completes("files")
)
@click.option(
    "--strict/--lenient",
    default=True,
    help="Apply every vendor's own rules, or only those by which gpushare refuses a container.",
)
@click.option("--quiet", "-q", is_flag=True, help="Omit informational findings.")
@shared.model_option
def command(
    session: Session, files: tuple[str, ...], strict: bool, quiet: bool, model: ModelFormats
) -> None:
    """Check the GPU requests in manifests.

    FILE is a manifest of Kubernetes or docker compose, an ECS task definition, a container's
    config.json or a device plugin's configuration, - for standard input, or a folder, of which all
    .yaml, .yml and .json files are checked. All problems are reported, each with file, line,
    column, key, value, rule and fix. A key that is not passed to the container runtime is reported
    as info and is not a problem. gpushared is not needed.

    The exit status is 1 if there is a problem, and 4 if --strict finds only warnings.
    """
    checked = list(_all_checked(_paths(files), strict=strict, model=model))
    levels = (ERROR, WARNING) if quiet else (ERROR, WARNING, INFO)
    session.show(
        {"strict": strict, "files": [_data(file_checked, levels) for file_checked in checked]},
        lambda: "\n".join(line for file in checked for line in _lines(file, levels)),
    )
    if any(file_checked.count(ERROR) for file_checked in checked):
        click.get_current_context().exit(ExitStatus.ERROR)
    if strict and any(file_checked.count(WARNING) for file_checked in checked):
        click.get_current_context().exit(ExitStatus.DEGRADED)


def _paths(files: tuple[str, ...]) -> list[str]:
    """Return the files to check, those of folders in order."""
    paths: list[str] = []
    for name in files:
        path = Path(name)
        if name == STDIN or not path.is_dir():
            paths.append(name)
            continue
        within = sorted(
            inside for inside in path.rglob("*") if inside.suffix in SUFFIXES and inside.is_file()
        )
        if not within:
            text = f"{name} contains no .yaml, .yml or .json file"
            raise UserError(text, code=ErrorCode.NOT_FOUND, key="FILE", value=name)
        paths += map(str, within)
    return list(dict.fromkeys(paths))


def _all_checked(paths: list[str], *, strict: bool, model: ModelFormats) -> Iterator[Checked]:
    """Yield what is checked of each file; where there is too much of them, what is not."""
    left = _MOST_VALUES
    for path in paths:
        if left <= 0:
            rule = (
                f"not checked, nor is any file after it: those before have over {_MOST_VALUES} "
                "values. Check fewer files at a time"
            )
            yield report_unreadable(ManifestError(path, Fault(0, 0, rule)))
            return
        yield (one := _checked(path, strict=strict, model=model))
        # One that cannot be read has at most a value in each of its bytes.
        left -= min(one.values, Path(path).stat().st_size if Path(path).is_file() else MAX_VALUES)


def _checked(path: str, *, strict: bool, model: ModelFormats) -> Checked:
    try:
        file = read(path)
        checked = check(file, strict=strict, model=model)
        return replace(checked, findings=(*checked.findings, *_refused_devices(file)))
    except ManifestError as error:
        return report_unreadable(error)


def _refused_devices(file: ManifestFile) -> Iterator[ManifestFinding]:
    """Yield the requests for devices that the Docker of this machine refuses."""
    asking = [(container, device_request(container)) for container in file.containers]
    if not any(path for _, path in asking):
        return
    from gpushare import checks  # noqa: PLC0415 - few files need them
    from gpushare.engines import ENGINES  # noqa: PLC0415

    if not ENGINES["docker"].is_present() or not checks.check_docker_gpus().fix:
        return
    for container, path in asking:
        node = find(container.document.root, path)
        if path and node is not None:
            fix = "use GPUSHARE_COUNT or GPUSHARE_DEVICES, which `gpushare convert` writes"
            yield node_finding(".".join(map(str, path)), node, checks.REFUSED, fix, level=WARNING)


def _data(checked: Checked, levels: tuple[str, ...]) -> dict[str, Any]:
    return {
        "file": checked.path,
        "containers": checked.containers,
        "asking": checked.asking,
        "findings": [asdict(finding) for finding in checked.findings if finding.level in levels],
    }


def _lines(checked: Checked, levels: tuple[str, ...]) -> Iterator[str]:
    """Yield a line for each finding, and one for the file."""
    for finding in checked.findings:
        if finding.level in levels:
            yield f"{printable(at(checked.path, finding.line, finding.column))}: {finding}"
    request = "requests" if checked.asking == 1 else "request"
    scope = f"{count(checked.containers, 'container')}, {checked.asking} {request} a GPU"
    counts = {"problem": checked.count(ERROR), "warning": checked.count(WARNING)}
    summary = ", ".join(count(number, noun) for noun, number in counts.items() if number)
    yield f"{printable(checked.path)}: {summary or 'ok'} ({scope})"
