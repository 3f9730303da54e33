# SPDX-License-Identifier: Apache-2.0
"""`gpushare simulator`: simulated cards, and faults in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from gpushare import simulator
from gpushare.cli import session as shared
from gpushare.errors import ErrorCode, UserError
from gpushare.simulator import device_file

if TYPE_CHECKING:
    from gpushare.cli.session import Session

Changed = TypeVar("Changed")


_KINDS = ("none", "lost", "hang", "slow", "lie", "unlisted", "exclusive", "prohibited")


@shared.group("simulator")
def command() -> None:
    """Create simulated cards and inject faults."""


@shared.command("create", example="gpushare simulator create ./cards --profile t4 --cards 2")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--profile", default="h200", show_default=True, help="Card model, or a JSON file.")
@click.option("--cards", type=click.IntRange(1, 16), default=1, show_default=True)
@click.option(
    "--driver-version",
    metavar="VERSION",
    help="Driver version, for example 580.159.04. Default: that of the profile.",
)
def create(
    session: Session, directory: Path, profile: str, cards: int, driver_version: str | None
) -> None:
    """Create simulated cards in a folder.

    The folder gets a device file and a CDI specification, which you set in gpushare.yaml.
    """
    try:
        simulated = simulator.create(directory, profile, cards=cards, driver_version=driver_version)
    except device_file.ProfileError as error:
        raise UserError(str(error), code=ErrorCode.USAGE) from error
    data = {
        "device": str(simulated.device),
        "cdi": str(simulated.cdi),
        "mps_control": str(simulated.mps_control),
    }
    session.show(
        data,
        lambda: "\n".join(
            [
                f"device {simulated.device} (GPUSHARE_SIM_DEVICE, for programs on this host)",
                f"mps    {simulated.mps_control} (nvidia-cuda-mps-control of these cards)",
                f"next: in /etc/gpushare/gpushare.yaml, driver.cdi_spec: {simulated.cdi}",
            ]
        ),
    )


@shared.command("fault", example="gpushare simulator fault ./cards/device lost --card 1")
@click.argument("device", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("kind", type=click.Choice(_KINDS))
@click.argument("value", default="")
@click.option("--card", type=click.IntRange(0, 15), default=0, show_default=True)
def fault(session: Session, device: Path, kind: str, value: str, card: int) -> None:
    """Inject a fault into a simulated card, or remove it.

    none removes the fault. lost: the card has fallen off the bus. hang: NVML calls for the card
    hang. slow MILLISECONDS: NVML calls are delayed. lie: NVML reports false figures; the value is
    bytes, twice, used, total, unsaid, pid or uuid, several separated by commas. unlisted: NVML does
    not list the card. exclusive, prohibited: the compute mode, in which one process or none can
    use the card. The fault takes effect at once, also for running programs.
    """
    faults = _faults(kind, value)
    _live(lambda: simulator.fail(device, card, **faults))
    session.show({"card": card, **faults}, f"card {card}: {kind} {value}".rstrip)


@shared.command("xid", example="gpushare simulator xid ./cards/device 79")
@click.argument("device", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("number", type=click.IntRange(1, 999))
@click.option("--card", type=click.IntRange(0, 15), default=0, show_default=True)
def xid(session: Session, device: Path, number: int, card: int) -> None:
    """Make a simulated card report an XID."""
    _live(lambda: simulator.raise_xid(device, number, card))
    session.show({"card": card, "xid": number}, lambda: f"card {card}: XID {number}")


@shared.command("driver", example="gpushare simulator driver ./cards/device 590.10.01")
@click.argument("device", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("version", default="")
@click.option(
    "--mismatch",
    is_flag=True,
    help="Make the driver refuse programs that load it, as during an upgrade.",
)
def driver(session: Session, device: Path, version: str, mismatch: bool) -> None:
    """Change the version of the simulated driver while programs run."""
    error = device_file.MISMATCH if mismatch else 0
    _live(lambda: simulator.change_driver(device, version, error))
    session.show({"version": version, "mismatch": mismatch}, f"driver {version}".rstrip)


@shared.command("mig", example="gpushare simulator mig ./cards/device 3g.71gb 1g.18gb")
@click.argument("device", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("instances", nargs=-1)
@click.option("--profile", default="h200", show_default=True, help="Card model.")
def mig(session: Session, device: Path, instances: tuple[str, ...], profile: str) -> None:
    """Partition the simulated cards into MIG instances, or undo that without INSTANCES."""
    uuids = _live(lambda: simulator.partition(device, instances, profile))
    session.show({"instances": list(uuids)}, lambda: "\n".join(uuids) or "no card is partitioned")


def _faults(kind: str, value: str) -> dict[str, int]:
    """Return the arguments of `simulator.fail`. Raises UsageError for an invalid value."""
    plain = {"none": {}, "lost": {"lost": 1}, "hang": {"nvml_hangs": 1}}
    plain["unlisted"] = {"listed": device_file.NOWHERE}
    plain |= {"exclusive": {"compute_mode": 3}, "prohibited": {"compute_mode": 2}}
    if kind in plain and not value:
        return plain[kind]
    if kind == "slow" and value.isdecimal():
        return {"nvml_delay_ms": int(value)}
    names = [name.upper() for name in value.split(",")]
    if kind == "lie" and all(name in device_file.FalseReading.__members__ for name in names):
        return {"lies": sum(device_file.FalseReading[name] for name in set(names))}
    known = ", ".join(device_file.FalseReading.__members__).lower()
    rules = {"slow": "requires milliseconds", "lie": f"requires one or more of {known}"}
    raise click.UsageError(f'"{kind} {value}": {kind} {rules.get(kind, "takes no value")}.')


def _live(change: Callable[[], Changed]) -> Changed:
    try:
        return change()
    except device_file.ProfileError as error:
        raise UserError(str(error), code=ErrorCode.USAGE) from error


for verb in (create, fault, xid, driver, mig):
    command.add_command(verb)
