# SPDX-License-Identifier: Apache-2.0
"""`gpushare cdi`: generate the CDI specification of the driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpushare.cli import session as shared
from gpushare.errors import UserError
from gpushare.host import cdi_files, driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.session import Session

STDOUT: Final = Path("-")


@shared.group("cdi")
def command() -> None:
    """Generate CDI specifications."""


@shared.command("generate", example="gpushare cdi generate --output /etc/cdi/gpushare.yaml")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"Output file, YAML by its suffix, or - for stdout. Default: {cdi_files.OWN}.",
)
@click.option(
    "--driver-root",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=Path("/"),
    metavar="DIR",
    help="Root directory of the machine with the driver.",
)
def generate(
    session: Session,
    output: Path | None,
    driver_root: Path,
) -> None:
    """Generate the CDI specification of the installed driver.

    No NVIDIA tool is required. When the driver changes, gpushared writes the default file again.
    """
    installed = driver.find(driver_root)
    document = installed.cdi()
    if not document["devices"]:
        raise UserError(
            f"driver {installed.version} is installed, but /proc/driver/nvidia/gpus has no card. "
            "Load the driver (modprobe nvidia), or see nvidia-smi."
        )
    if output is None:
        output = cdi_files.OWN
    if output.suffix == ".yml":
        raise click.UsageError(f"{output}: engines read .yaml and .json only")
    text = cdi_files.format_spec(document, as_yaml=output.suffix == ".yaml")
    if output == STDOUT:
        click.echo(text, nl=False)
        return
    cdi_files.refuse_conflict(output)
    changed = cdi_files.write_spec(output, text)
    names = [device["name"] for device in document["devices"]]
    data = {
        "output": str(output),
        "driver": installed.version,
        "changed": changed,
        "devices": names,
    }
    session.show(data, lambda: "\n".join(_written(installed, output, names, changed=changed)))


def _written(
    installed: driver.InstalledDriver, output: Path, names: list[str], *, changed: bool
) -> Iterator[str]:
    parts = ", ".join(f"{name} {count}" for name, count in sorted(installed.parts().items()))
    yield f"{'wrote' if changed else 'unchanged'}: {output}"
    yield f"driver {installed.version}: {parts}"
    yield f"devices: {', '.join(names)}"


command.add_command(generate)
