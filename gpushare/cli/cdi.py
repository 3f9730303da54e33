# SPDX-License-Identifier: Apache-2.0
"""`gpushare cdi`: the driver of this host as a CDI spec, and the specs that there are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare import config
from gpushare.cli import session as shared
from gpushare.cli.table import table
from gpushare.errors import UserError
from gpushare.host import cdi_files, driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.session import Session
    from gpushare.host.cdi_files import Found

CHANNELS: Final = Path("/etc/cdi/gpushare-imex.json")
STDOUT: Final = Path("-")


@click.group("cdi", epilog="Example: gpushare cdi generate --output -")
@shared.shared_options
def command() -> None:
    """Describe this machine's driver for container engines."""


@shared.command("generate", example="gpushare cdi generate --output - --format yaml")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"Where to write it, - for stdout; else {cdi_files.OWN}.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("json", "yaml")),
    help="Else by the file's name, else JSON.",
)
@click.option(
    "--driver-root",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=Path("/"),
    metavar="DIR",
    help="The root of the machine to look at, where it is not this one's.",
)
@click.option("--imex-channels", is_flag=True, help="The IMEX channels instead of the cards.")
def generate(
    session: Session,
    output: Path | None,
    form: str | None,
    driver_root: Path,
    imex_channels: bool,
) -> None:
    """Write the CDI spec of the driver that is installed.

    It needs no other program of NVIDIA's. gpushared writes a file of this name again when the
    driver has changed.
    """
    found = driver.find(driver_root)
    document = found.channels_cdi() if imex_channels else found.cdi()
    if document is None:
        raise UserError("the kernel has no IMEX channels: nvidia-caps-imex-channels is not loaded")
    if not document["devices"]:
        raise UserError(
            f"driver {found.version} is installed, and the kernel shows no card in "
            "/proc/driver/nvidia/gpus: load it (modprobe nvidia), or see nvidia-smi"
        )
    if output is None:
        output = CHANNELS if imex_channels else cdi_files.OWN
    as_yaml = form == "yaml" or (form is None and output.suffix in {".yaml", ".yml"})
    if as_yaml and form is None and output.suffix == ".yml":
        raise UserError(f"{output}: engines read .yaml and .json only")
    text = cdi_files.as_text(document, as_yaml=as_yaml)
    if output == STDOUT:
        click.echo(text, nl=False)
        return
    if not imex_channels:
        cdi_files.refuse_conflict(output)
    changed = cdi_files.write(output, text)
    names = [device["name"] for device in document["devices"]]
    data = {"output": str(output), "driver": found.version, "changed": changed, "devices": names}
    session.show(data, lambda: "\n".join(_written(found, output, names, changed=changed)))


def _written(
    found: driver.Driver, output: Path, names: list[str], *, changed: bool
) -> Iterator[str]:
    parts = ", ".join(f"{name} {count}" for name, count in sorted(found.parts().items()))
    yield f"{'wrote' if changed else 'unchanged'}: {output}"
    yield f"driver {found.version}: {parts}"
    yield f"devices: {', '.join(names)}"


@shared.command("list", example="gpushare cdi list")
def list_devices(session: Session) -> None:
    """Show the devices of every CDI spec, and the file each is from.

    These are the specs that engines read, and the one that gpushare.yaml names (driver.cdi).
    """
    specs = _specs()
    rows = [row for spec in specs for row in _rows(spec)]
    session.show_rows(
        rows,
        lambda rows: table(
            ("DEVICE", "NODES", "FROM", "STATE"),
            [(row["device"], row["nodes"], row["from"], row["state"]) for row in rows],
        ),
        "no CDI spec: gpushare cdi generate writes one",
    )


def _specs() -> list[Found]:
    specs = cdi_files.found()
    named = config.load().cdi
    if named is not None and named not in {spec.path for spec in specs}:
        specs.append(cdi_files.read(named))
    return specs


def _rows(spec: Found) -> list[dict[str, Any]]:
    if spec.spec is None:
        return [{"device": "-", "nodes": "-", "from": str(spec.path), "state": spec.fault}]
    missing = spec.missing
    state = f"of another driver: no {missing[0]}" if missing else "ok"
    return [
        {
            "device": f"{spec.spec.kind}={name}",
            "nodes": " ".join(node.path.removeprefix("/dev/") for node in edits.nodes) or "-",
            "from": str(spec.path),
            "state": state,
        }
        for name, edits in spec.spec.devices.items()
    ]


command.add_command(generate)
command.add_command(list_devices)
