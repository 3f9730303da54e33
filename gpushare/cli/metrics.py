# SPDX-License-Identifier: Apache-2.0
"""`gpushare metrics`: the metrics of gpushare-exporter; `rules`: rules and dashboards for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import gpushare
from gpushare.cli import session as shared
from gpushare.exporter.exposition import expose
from gpushare.exporter.metric_family import SnapshotSource

if TYPE_CHECKING:
    from gpushare.cli.session import Session


@shared.command("metrics")
@click.option(
    "--node",
    metavar="NAME",
    default="",
    help="Value of the label node. Default: $NODE_NAME, kubernetes.node of gpushare.yaml, or the "
    "host name.",
)
def metrics(session: Session, node: str) -> None:
    """Print the Prometheus metrics once.

    The output is what gpushare-exporter serves, for example for the textfile collector of
    node_exporter. docs/reference/metrics.md lists the metrics. --json prints the figures as
    gpushared reports them.

    If gpushared does not respond, gpushare_up is 0 and the exit status is 1.
    """
    if session.json:
        figures = session.client.metrics()
        session.show(vars(figures), str)
        return
    source = SnapshotSource(session.socket, node)
    text, _ = expose(source.snapshot())
    click.echo(text, nl=False)
    if source.error is not None:
        raise source.error


# --- `gpushare rules`: Prometheus rules and Grafana dashboards for gpushare-exporter's metrics ---

#: The file of the rules.
RULES: Final = "gpushare.rules.yaml"
DASHBOARDS: Final = ("overview.json", "card.json", "container.json", "reports.json")
FILES: Final = (RULES, *DASHBOARDS)


@shared.group("rules")
def rules() -> None:
    """Print Prometheus rules and Grafana dashboards."""


@shared.command("export", example="gpushare rules export --output monitoring")
@click.argument("file", metavar="[FILE]", type=click.Choice(FILES), required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Directory to which the files are written. It is created if it does not exist.",
)
def export(session: Session, file: str | None, output: Path | None) -> None:
    """Print a file of rules or dashboards, or write all of them.

    FILE is gpushare.rules.yaml (default), the alerting and recording rules, for a path that
    rule_files in prometheus.yml includes. overview.json, card.json, container.json and reports.json
    are dashboards for Grafana 10 and later: import them, or provision them from a directory.

    With --output and without a FILE, all five files are written, over those of the same name.

    Each alerting rule has a severity (critical, warning or info), a summary and a fix. Rules and
    dashboards use only the metrics of docs/reference/metrics.md.
    """
    if output is not None:
        written = _write(output, FILES if file is None else (file,))
        session.show({"files": written}, lambda: "\n".join(written))
        return
    name = file or RULES
    text = read(name)
    if session.json:
        session.show(_parsed(name, text), lambda: text)
    else:
        click.echo(text, nl=False)


rules.add_command(export)


def _parsed(name: str, text: str) -> Any:
    if name != RULES:
        return json.loads(text)
    import yaml  # noqa: PLC0415 - only here

    return yaml.safe_load(text)


def _write(folder: Path, names: tuple[str, ...]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(read(name), encoding="utf-8")
    return [str(folder / name) for name in names]


def read(name: str) -> str:
    """Return the text of one of FILES, from the source tree or the installed package."""
    kind = "prometheus" if name == RULES else "grafana"
    folders = (Path(__file__).parents[2] / "configs", *map(Path, gpushare.__path__))
    files = (folder / kind / name for folder in folders)
    return next(file for file in files if file.is_file()).read_text(encoding="utf-8")
