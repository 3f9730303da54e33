# SPDX-License-Identifier: Apache-2.0
"""`kubectl gpushare`: the cards and the containers of a whole cluster, and a trial of it.

A program of its own, kubectl-gpushare, which kubectl finds by its name in PATH. It runs beside
kubectl, without gpushared, and imports the standard library and click alone.
"""

from __future__ import annotations

import csv
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

import gpushare
from gpushare.cli import status
from gpushare.cli.session import GpushareCommand, RootCommand, Session
from gpushare.cli.text import printable, terminal_table
from gpushare.errors import ExitStatus
from gpushare.kubernetes.cluster import ClusterCard, ClusterContainer
from gpushare.kubernetes.cluster.kubectl import connect, current_namespace, run_kubectl
from gpushare.kubernetes.cluster.survey import ClusterNode, ClusterSurvey, problems
from gpushare.kubernetes.cluster.verify import ClusterTrial
from gpushare.protocol.rows import RUN_STATES
from gpushare.quota.size import format_size

PROGRAM: Final = "kubectl gpushare"
_CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_NONE: Final = "no node has gpushare. To install it, see docs/how-to/kubernetes.md of gpushare."
PS_HEADINGS: Final = ("NAMESPACE", "POD", "CONTAINER", "NODE", *status.PS_HEADINGS[1:])
PS_DROPPED: Final = (
    "THROTTLED",
    "POLICY",
    "NAMESPACE",
    "CARD",
    "NODE",
    "CONTAINER",
    "CORES USED/QUOTA",
)
PS_WIDE: Final = ("CLASS", "FORCED LAUNCHES", "HUNG", "ID")


class ClusterRequest(NamedTuple):
    """The question, and how its answer is printed."""

    options: tuple[str, ...]  # of kubectl
    system_namespace: str
    node: str
    output: str  # "" | wide | json | csv


def main() -> None:
    """Run the command line of this process."""
    command(prog_name=PROGRAM)


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"{PROGRAM} {gpushare.__version__}")
        ctx.exit()


@click.group("gpushare", cls=RootCommand, context_settings=_CONTEXT_SETTINGS)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def command() -> None:
    """Show the NVIDIA cards that gpushare shares in a Kubernetes cluster, and their containers.

    The figures are those of gpushare-exporter on each node. Of a node whose exporter does not
    answer, the command shows what Kubernetes has allocated there, says on stderr why it does not
    answer, and exits with status 4.

    Exit status: 0 success, 1 error, 2 usage error, 3 permission denied, 4 degraded.
    """


def _as_json(ctx: click.Context, _: click.Parameter, output: str | None) -> str:
    ctx.ensure_object(Session).json = output == "json"
    return output or ""


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options by which a command finds the cluster and its nodes."""
    for option in (
        click.option(
            "--kubeconfig",
            metavar="FILE",
            default="",
            help="Default: $KUBECONFIG, ~/.kube/config, or the pod's service account.",
        ),
        click.option(
            "--context", metavar="NAME", default="", help="The kubeconfig context to use."
        ),
        click.option(
            "--system-namespace",
            metavar="NAME",
            default="gpushare-system",
            show_default=True,
            help="The namespace of gpushare's chart.",
        ),
        click.option("--node", metavar="NAME", default="", help="Only this node."),
    ):
        function = option(function)
    return function


def _of_kubectl(context: str, kubeconfig: str) -> tuple[str, ...]:
    """Return the options that kubectl gets."""
    given = (("--context", context), ("--kubeconfig", kubeconfig))
    return tuple(f"{option}={value}" for option, value in given if value)


def _plugin_command(name: str, example: str) -> Callable[[Callable[..., None]], click.Command]:
    """Turn a function of a Session and a ClusterRequest into a command."""

    def wrap(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def call(
            context: str,
            kubeconfig: str,
            system_namespace: str,
            node: str,
            output: str,
            **options: Any,
        ) -> None:
            words = _of_kubectl(context, kubeconfig)
            session = click.get_current_context().ensure_object(Session)
            function(session, ClusterRequest(words, system_namespace, node, output), **options)

        output_option = click.option(
            "-o",
            "--output",
            type=click.Choice(["wide", "json", "csv"]),
            is_eager=True,
            callback=_as_json,
            help="wide adds columns. json and csv have sizes in bytes.",
        )
        made = _with_options(output_option(call))
        return command.command(name, GpushareCommand, epilog=f"Example: {example}")(made)

    return wrap


@_plugin_command("ls", "kubectl gpushare ls --node gpu-7")
def ls(session: Session, request: ClusterRequest) -> None:
    """List the cards of the cluster and their available capacity.

    The columns are those of `gpushare ls` on the node, and a narrow terminal leaves them out in the
    same order. A - is unknown. If a node does not answer,
    MEMORY is what the scheduler may allocate, and ALLOCATED what it has allocated; in the mode
    plugin, it counts all cards of a node together.

    -o wide adds the UUID of the card, the mode in which the node's pods request GPUs, and the
    versions of gpushare and of the driver.

    If a card has a problem, or a node does not answer, the exit status is 4.
    """
    with connect(request.options) as api:
        survey = ClusterSurvey(api, request.system_namespace, request.node)
        cards = survey.cards()
    nodes = {node.name: node for node in survey.nodes}
    _show(session, request, cards, ClusterCard, lambda: _ls(cards, nodes, request.output))
    if not nodes:
        click.echo(_NONE, err=True)
    _end(survey, is_degraded=any(card["health"] not in {"", "ok"} for card in cards))


def _ls(cards: Sequence[ClusterCard], nodes: Mapping[str, ClusterNode], output: str) -> str:
    headings = status.card_headings(cards)
    wide = ("UUID", "NODE MODE", "VERSION", "DRIVER") if output == "wide" else ()
    rows = [
        (
            card["node"],
            *status.card_cells(card, headings),
            *(_of_node(card, nodes[card["node"]]) if wide else ()),
        )
        for card in cards
    ]
    dropped = None if wide else status.LS_DROPPED
    return terminal_table(("NODE", *headings, *wide), rows, dropped, status.colour)


def _of_node(card: ClusterCard, node: ClusterNode) -> tuple[str, ...]:
    versions = node.figures.versions if node.figures is not None else {}
    cells = (card["uuid"], node.mode, versions.get("version"), versions.get("driver"))
    return tuple(cell or "-" for cell in cells)


@_plugin_command("ps", "kubectl gpushare ps -A")
@click.option("-n", "--namespace", metavar="NAME", default="", help="Default: the context's.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Also containers that belong to no pod.")
def ps(session: Session, request: ClusterRequest, namespace: str, all_namespaces: bool) -> None:
    """List the containers with a GPU, and their usage.

    There is one row for each card of a container. The columns are those of `gpushare ps` on the
    node, but the used part of CORES, and THROTTLED, are of the last ten seconds. A - is unknown: of
    a node that does not answer, only pods and what the scheduler has allocated to them are known.

    On a terminal that is too narrow, columns are left out in this order, and the last line names
    them: THROTTLED, POLICY, NAMESPACE, CARD, NODE, CONTAINER, CORES. If that does not suffice, the
    longest texts are shortened. -o wide, and a pipe, get all columns.

    -o wide adds CLASS, FORCED LAUNCHES and HUNG of `gpushare ps --wide`, and the container's ID.

    If a node does not answer, the exit status is 4.
    """
    wanted = "" if all_namespaces else namespace or current_namespace(request.options)
    with connect(request.options) as api:
        survey = ClusterSurvey(api, request.system_namespace, request.node)
        found = survey.containers()
    rows = [one for one in found if not wanted or one["namespace"] == wanted]
    _show(session, request, rows, ClusterContainer, lambda: _ps(rows, request.output))
    if not survey.nodes:
        click.echo(_NONE, err=True)
    elif not rows and not session.json:
        place = f"namespace {wanted}" if wanted else "the cluster"
        click.echo(f"no container in {place} uses a GPU of gpushare.", err=True)
    _end(survey)


@command.command("verify", GpushareCommand, epilog="Example: kubectl gpushare verify --node gpu-7")
@_with_options
def verify(context: str, kubeconfig: str, system_namespace: str, node: str) -> None:
    """Test that gpushare works in the cluster.

    In a namespace that it creates and deletes, verify starts two pods of 1 GiB on each node that
    has gpushare, and one that requests more than a card has. It checks that the first two run and
    have their quotas, that the third does not run and says why, and that everything is released. It
    also checks what the nodes offer, what `gpushare doctor --k8s` finds there, and the admission
    policies. The pods run the image of the chart.

    The last lines say on which clusters gpushare has run, and on which it never has.

    You need the right to create a namespace, and pods in it, and to `exec` in the pods of the
    chart. If a check fails, the exit status is 1.
    """
    kubectl = functools.partial(run_kubectl, _of_kubectl(context, kubeconfig))
    failed = False
    for finding in ClusterTrial(kubectl, system_namespace, node).run():
        click.echo(f"{finding.level:<6}{printable(finding.text)}")
        failed = failed or finding.level == "fail"
    if failed:
        click.get_current_context().exit(ExitStatus.ERROR)


def _ps(rows: Sequence[ClusterContainer], output: str) -> str:
    wide = output == "wide"
    return terminal_table(
        (*PS_HEADINGS, *PS_WIDE) if wide else PS_HEADINGS,
        [(*_container(one), *(_wide(one) if wide else ())) for one in rows],
        None if wide else PS_DROPPED,
        status.colour,
    )


def _container(one: ClusterContainer) -> tuple[str, ...]:
    return (
        one["namespace"] or "-",
        one["pod"] or "-",
        one["container"] or one["id"][:12] or "-",
        one["node"],
        "-" if one["index"] is None else str(one["index"]),
        _memory(one),
        one["state"] if one["state"] in RUN_STATES.values() else _cores(one),
        one["policy"] or "-",
        status.throttled_part(one["throttled"]),
        one["isolation"] or "-",
    )


def _memory(one: ClusterContainer) -> str:
    quota, used, limit = one["quota_bytes"], one["used_bytes"], one["limit_bytes"]
    if quota is None:
        return "-"
    if used is None or limit is None:
        return f"-/{format_size(quota)}"
    return status.memory_use(used, quota, limit)


def _cores(one: ClusterContainer) -> str:
    used = one["cores_used"]
    figure = "-" if used is None else status.cores_figure(used, one["cores_source"])
    return status.cores_use(figure, one["cores"])


def _wide(one: ClusterContainer) -> tuple[str, ...]:
    forced, priority = one["forced_launches"], one["priority"]
    return (
        "-" if priority is None else status.class_name(priority, one["class"]),
        "-" if forced is None else str(forced),
        "yes" if one["is_hung"] else "-" if forced is None else "no",
        one["id"][:12] or "-",
    )


def _show(
    session: Session,
    request: ClusterRequest,
    rows: Sequence[ClusterCard] | Sequence[ClusterContainer],
    kind: type,
    text: Callable[[], str],
) -> None:
    """Print the rows, as a table unless -o says otherwise; no table of no rows."""
    if request.output == "csv":
        writer = csv.DictWriter(sys.stdout, list(kind.__annotations__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif rows or session.json:
        session.show(rows, text)


def _end(survey: ClusterSurvey, *, is_degraded: bool = False) -> None:
    """Say which nodes have a problem, and end with status 4 if one has."""
    lines = problems(survey.nodes)
    for line in lines:
        click.echo(f"{PROGRAM}: {printable(line)}", err=True)
    if lines or is_degraded:
        click.get_current_context().exit(ExitStatus.DEGRADED)


if __name__ == "__main__":
    main()
