# SPDX-License-Identifier: Apache-2.0
"""`gpushare k8s`: resources for a platform's console."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from gpushare.cli import session as shared
from gpushare.cli.text import count, printable
from gpushare.errors import ExitStatus
from gpushare.manifest import read
from gpushare.manifest.alauda import GROUPS, check_resources, config_maps
from gpushare.manifest.model import ERROR, WARNING
from gpushare.text_position import at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushare.cli.session import Session
    from gpushare.manifest.model import ManifestFinding


@shared.group("k8s")
def command() -> None:
    """Describe resources to a platform's console."""


@shared.command(
    "resources",
    example="gpushare k8s resources --format alauda --group gpushare | kubectl apply -f -",
)
@click.option(
    "--format", "form", type=click.Choice(("alauda",)), required=True, help="The platform."
)
@click.option(
    "--group",
    "groups",
    type=click.Choice(tuple(GROUPS)),
    multiple=True,
    help="Only these groups of resources; repeatable. Default: all.",
)
@click.option(
    "--check",
    "file",
    metavar="FILE",
    shell_complete=shared.completes("files"),
    help="Check the ConfigMaps in FILE, or - for stdin, and write none.",
)
def resources(session: Session, form: str, groups: tuple[str, ...], file: str | None) -> None:
    """Write or check a console's GPU resources.

    --format alauda writes the ConfigMaps cf-crl-... of the namespace kube-public, from which the
    console of Alauda Container Platform takes the resources that users can request. The groups are
    gpushare (gpushare.io/memory-gib of the device plugin), gpushare-dra (gpushare.io/card), and
    the keys of other systems that gpushare translates: gpu-manager, hami-nvidia and mps.

    --check compares the ConfigMaps of a cluster with these, for example the output of kubectl get
    cm -n kube-public -o yaml. Each finding has the line, the field and what to do. Of a group that
    --group does not name, all resources are expected, or none.

    The exit status of --check is 1 if a ConfigMap is wrong or missing, and 4 if one only differs.
    """
    if file is not None:
        _check(session, form, file, check_resources(read(file), groups))
        return
    items = list(config_maps(groups or GROUPS))
    session.show({"apiVersion": "v1", "kind": "List", "items": items}, lambda: _yaml(items))


def _yaml(items: Iterable[dict[str, Any]]) -> str:
    import yaml  # noqa: PLC0415 - not for --json

    text = yaml.safe_dump_all(items, sort_keys=False, allow_unicode=True, width=100)
    return str(text).rstrip("\n")


def _check(session: Session, form: str, file: str, findings: list[ManifestFinding]) -> None:
    session.show(
        {"format": form, "file": file, "findings": [asdict(one) for one in findings]},
        lambda: "\n".join(_lines(file, findings)),
    )
    levels = {finding.level for finding in findings}
    if ERROR in levels:
        click.get_current_context().exit(ExitStatus.ERROR)
    if WARNING in levels:
        click.get_current_context().exit(ExitStatus.DEGRADED)


def _lines(file: str, findings: list[ManifestFinding]) -> list[str]:
    lines = [
        f"{printable(at(file, finding.line, finding.column))}: {finding}" for finding in findings
    ]
    counts = {
        noun: sum(one.level == level for one in findings)
        for noun, level in (("problem", ERROR), ("difference", WARNING))
    }
    summary = ", ".join(count(number, noun) for noun, number in counts.items() if number)
    return [*lines, f"{printable(file)}: {summary or 'ok'}"]


command.add_command(resources)
