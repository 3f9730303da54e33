# SPDX-License-Identifier: Apache-2.0
"""`gpushare simulator`: cards that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpushare import simulator
from gpushare.cli import session as shared
from gpushare.errors import UserError

if TYPE_CHECKING:
    from gpushare.cli.session import Session


@click.group("simulator", epilog="Example: gpushare simulator create ./cards --profile h200")
@shared.shared_options
def command() -> None:
    """Make simulated cards, to try without a GPU."""


@shared.command("create", example="gpushare simulator create ./cards --profile t4 --cards 2")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--profile", default="h200", show_default=True, help="A model, or a JSON file.")
@click.option("--cards", type=click.IntRange(1, 16), default=1, show_default=True)
@click.option("--driver-version", metavar="VERSION", help="Else the profile's, e.g. 580.159.04.")
def create(
    session: Session, directory: Path, profile: str, cards: int, driver_version: str | None
) -> None:
    """Make simulated cards in a folder.

    That is a device file and a CDI spec, which is to be named in gpushare.yaml.
    """
    try:
        made = simulator.create(directory, profile, cards=cards, driver_version=driver_version)
    except simulator.ProfileError as error:
        raise UserError(str(error)) from error
    data = {"device": str(made.device), "cdi": str(made.cdi)}
    session.show(
        data,
        lambda: "\n".join(
            [
                f"device {made.device} (GPUSHARE_SIM_DEVICE, for programs on this host)",
                f"next: in /etc/gpushare/gpushare.yaml, driver.cdi: {made.cdi}",
            ]
        ),
    )


command.add_command(create)
