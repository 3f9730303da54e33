# SPDX-License-Identifier: Apache-2.0
"""`gpushare k8s`: resources for a platform's console."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpushare.cli import session as shared
from gpushare.manifest.alauda import GROUPS, config_maps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushare.cli.session import Session


@shared.group("k8s")
def command() -> None:
    """Describe resources to a platform's console."""


@shared.command(
    "resources",
    example="gpushare k8s resources --format alauda --group gpushare | kubectl apply -f -",
)
@click.option(
    "--format",
    type=click.Choice(("alauda",)),
    required=True,
    expose_value=False,
    help="The platform.",
)
@click.option(
    "--group",
    "groups",
    type=click.Choice(tuple(GROUPS)),
    multiple=True,
    help="Only these groups of resources; repeatable. Default: all.",
)
def resources(session: Session, groups: tuple[str, ...]) -> None:
    """Write a console's GPU resources.

    --format alauda writes the ConfigMaps cf-crl-... of the namespace kube-public, from which the
    console of Alauda Container Platform takes the resources that users can request. The groups are
    gpushare (gpushare.io/memory-gib of the device plugin), gpushare-dra (gpushare.io/card), and
    the keys of other systems that gpushare translates: gpu-manager, hami-nvidia and mps.
    """
    items = list(config_maps(groups or GROUPS))
    session.show({"apiVersion": "v1", "kind": "List", "items": items}, lambda: _yaml(items))


def _yaml(items: Iterable[dict[str, Any]]) -> str:
    import yaml  # noqa: PLC0415 - not for --json

    text = yaml.safe_dump_all(items, sort_keys=False, allow_unicode=True, width=100)
    return str(text).rstrip("\n")


command.add_command(resources)
