# SPDX-License-Identifier: Apache-2.0
"""`gpushare k8s`: resources for a platform's console, and the migration from another system."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from gpushare.cli import session as shared
from gpushare.cli.text import count, printable
from gpushare.errors import ErrorCode, ExitStatus, UserError
from gpushare.manifest import read
from gpushare.manifest.alauda import GROUPS, check_resources, config_maps
from gpushare.manifest.migration import MigrationMode, plans
from gpushare.manifest.migration.report import as_data, as_markdown, as_text
from gpushare.manifest.model import ERROR, WARNING
from gpushare.text_position import at
from gpushare.yaml_nodes import YamlRules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushare.cli.session import Session
    from gpushare.manifest import ManifestFile
    from gpushare.manifest.model import ManifestFinding


@shared.group("k8s")
def command() -> None:
    """Migrate from another system, or describe resources to a console."""


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

    made = yaml.safe_dump_all(items, sort_keys=False, allow_unicode=True, width=100)
    return str(made).rstrip("\n")


def _check(session: Session, form: str, file: str, findings: list[ManifestFinding]) -> None:
    session.show(
        {"format": form, "file": file, "findings": [asdict(one) for one in findings]},
        lambda: "\n".join(_lines(file, findings)),
    )
    levels = {one.level for one in findings}
    if ERROR in levels:
        click.get_current_context().exit(ExitStatus.ERROR)
    if WARNING in levels:
        click.get_current_context().exit(ExitStatus.DEGRADED)


def _lines(file: str, findings: list[ManifestFinding]) -> list[str]:
    lines = [f"{printable(at(file, one.line, one.column))}: {one}" for one in findings]
    found = {
        what: sum(one.level == level for one in findings)
        for what, level in (("problem", ERROR), ("difference", WARNING))
    }
    summary = ", ".join(count(number, what) for what, number in found.items() if number)
    return [*lines, f"{printable(file)}: {summary or 'ok'}"]


#: What a migration looks at.
_KINDS: Final = (
    "daemonsets,deployments,statefulsets,jobs,pods,nodes,configmaps,"
    "mutatingwebhookconfigurations,validatingwebhookconfigurations"
)
#: A dump of a large cluster: about 4,000 pods.
_DUMP: Final = YamlRules(max_bytes=32 << 20, max_values=4_000_000)
_CLUSTER: Final = "cluster"
_KUBECTL_SECONDS: Final = 120


@shared.command(
    "migrate",
    example="kubectl get ds,deploy,sts,jobs,pods,nodes,cm,mutatingwebhookconfigurations -A -o yaml "
    "| gpushare k8s migrate -",
)
@click.argument("files", nargs=-1, metavar="[FILE]...", shell_complete=shared.completes("files"))
@click.option(
    "--mode",
    type=click.Choice(get_args(MigrationMode)),
    help="Mode of gpushare's nodes. Default: plugin, or annotations before Kubernetes 1.34.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "markdown", "json")),
    default="text",
    show_default=True,
    help="Output format.",
)
def migrate(
    session: Session, files: tuple[str, ...], mode: MigrationMode | None, form: str
) -> None:
    """Print the steps from another system to gpushare.

    The systems are HAMi, gpu-manager, qGPU and cGPU (ACK). FILE is a dump of the cluster, or - for
    stdin: DaemonSets, Deployments, pods, nodes, ConfigMaps and webhook configurations, as kubectl
    get -A -o yaml prints them. Without FILE, kubectl is run. Nothing in the cluster is changed.

    For each system that is found, the output has its objects, what its keys in pods and its
    settings become, the values of gpushare's chart, and the steps in their order, each with the way
    back. Until the last steps, both systems run side by side, on different nodes.

    The exit status is 1 if the dump has nothing of these systems.
    """
    dumps = [read(file, rules=_DUMP) for file in files] or [_live()]
    found = plans(dumps, mode)
    if not found:
        text = "no HAMi, gpu-manager, qGPU or cGPU was found"
        fix = "dump also its DaemonSets and Deployments, pods and nodes, of all namespaces (-A)"
        raise UserError(f"{text}: {fix}", code=ErrorCode.NOT_FOUND, key="FILE", fix=fix)
    data = [as_data(one) for one in found]
    if form == "json" and not session.json:
        click.echo(json.dumps(data, indent=2))
        return
    show = as_markdown if form == "markdown" else as_text
    lines = "\n".join(map(show, found)).rstrip("\n").splitlines()
    session.show(data, lambda: "\n".join(map(printable, lines)))


def _live() -> ManifestFile:
    """Return a dump of the cluster that kubectl is configured for; UserError without one."""
    import subprocess  # noqa: PLC0415 - not for a dump in a file

    words = ["kubectl", "get", _KINDS, "--all-namespaces", "--output", "yaml"]
    fix = "make the dump where kubectl works, and name its file: gpushare k8s migrate FILE"
    try:
        done = subprocess.run(
            words, capture_output=True, check=True, text=True, timeout=_KUBECTL_SECONDS
        )
    except FileNotFoundError:
        raise UserError(f"there is no kubectl: {fix}", code=ErrorCode.NOT_FOUND, fix=fix) from None
    except subprocess.TimeoutExpired:
        text = f"kubectl did not answer within {_KUBECTL_SECONDS} s"
        raise UserError(f"{text}: {fix}", fix=fix) from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()
        raise UserError(f"kubectl: {said[-1] if said else error}; {fix}", fix=fix) from None
    return read(_CLUSTER, done.stdout, _DUMP)


command.add_command(migrate)
command.add_command(resources)
