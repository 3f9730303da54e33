# SPDX-License-Identifier: Apache-2.0
"""`gpushare compat`: whether an image runs on this machine's driver and cards, or on another's."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare import compat, images
from gpushare.cli import session as shared
from gpushare.cli.failure import DEGRADED, REFUSED
from gpushare.cli.summary import count
from gpushare.cli.table import printable
from gpushare.client import DaemonUnreachable, UnknownTenant
from gpushare.compat import driver as drivers
from gpushare.compat import image as facts
from gpushare.compat.version import parse, shown, whole
from gpushare.errors import UserError
from gpushare.oci import compat as packages
from gpushare.oci.platform import this_platform
from gpushare.oci.rootfs import OldKernelError, Rootfs

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.compat.version import Version
    from gpushare.protocol import Card, Tenant

STATUS: Final = {"ok": 0, "warn": DEGRADED, "block": REFUSED}
_ELSEWHERE: Final = "--driver 580.65.06 --cc 9.0"
COLOURS: Final = {"ok": "green", "warn": "yellow", "block": "red"}


def _version(_ctx: click.Context, _parameter: click.Parameter, text: Any) -> Any:
    """Return the version, or the versions, that an option says."""
    if isinstance(text, tuple):
        return tuple(_version(_ctx, _parameter, one) for one in text)
    if text is None:
        return None
    found = parse(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no version; write it as 580.65.06, 12.4 or 7.0")
    return found


@shared.command("compat", example="gpushare compat nvidia/cuda:12.4.1-base-ubuntu22.04")
@click.argument("name", metavar="IMAGE|CONTAINER|PATH")
@click.option(
    "--driver", callback=_version, metavar="VERSION", help="Judge for this driver: 550.54.15."
)
@click.option(
    "--cuda", callback=_version, metavar="VERSION", help="... and the CUDA that it can do."
)
@click.option(
    "--cc",
    callback=_version,
    multiple=True,
    metavar="VERSION",
    help="... and a card of this capability: 7.0.",
)
@click.option("--brand", default="", metavar="NAME", help="Of these cards: tesla, nvidia, geforce.")
@click.option("--mig", is_flag=True, help="These cards are partitioned.")
@click.option(
    "--backend",
    type=click.Choice(compat.BACKENDS),
    default="interposer",
    show_default=True,
    help="What is to hold the quota.",
)
def command(
    session: Session,
    name: str,
    driver: Version | None,
    cuda: Version | None,
    cc: tuple[Version, ...],
    brand: str,
    mig: bool,
    backend: compat.Backend,
) -> None:
    """Check whether an image runs on the driver and the cards of this machine, or of another.

    A PATH begins with / or . and is a root directory, a bundle, or an image in a file (docker save,
    an OCI archive). Anything else is a container, of gpushare, docker or podman, or an image that
    one of them has. Nothing of it is run, and no link is followed out of it.

    Judged are the CUDA runtimes in it, its NVIDIA_REQUIRE_ variables, its cuda-compat, and what its
    command line computes with: docs/reference/compatibility.md has the rules. With --driver, --cuda
    or --cc this machine is not asked.

    The exit status is 4 with a warning and 3 where it does not run.
    """
    elsewhere = bool(driver or cuda or cc)
    if not elsewhere and (brand or mig):
        raise click.UsageError("--brand and --mig are for --driver, --cuda or --cc")
    tenant = None
    if elsewhere:
        cards = tuple(compat.Card("", one, brand.lower(), mig, _for_centres(brand)) for one in cc)
        here = compat.Machine(driver or (), cuda or drivers.cuda_of(driver or ()), cards, backend)
        if not here.cuda:
            raise click.UsageError("which CUDA is not known: add --cuda, as nvidia-smi shows it")
    else:
        try:
            tenant = _tenant(session, name)
            here = _machine(session, tenant, backend)
        except DaemonUnreachable as error:
            raise UserError(f"{error}; or say for which machine: {_ELSEWHERE}") from error
    with images.find(name, tenant["pid"] if tenant is not None else 0) as found:
        image, note = _look(found)
        findings = compat.judge(image, here)
    verdict = compat.worst(findings)
    answer = {
        "name": found.name,
        "kind": found.kind,
        "note": note,
        "verdict": verdict,
        "image": _image(image),
        "machine": _shown(here),
        "findings": [asdict(one) for one in findings],
    }
    session.show(answer, lambda: _text(found, note, here, findings))
    if STATUS[verdict]:
        click.get_current_context().exit(STATUS[verdict])


def _tenant(session: Session, name: str) -> Tenant | None:
    """Return the container of gpushare that `name` is, None where it is none that runs."""
    if name.startswith(("/", ".")):
        return None
    try:
        tenant = session.client.tenant(name)
    except UnknownTenant:
        return None
    return tenant if tenant["pid"] else None


def _machine(session: Session, tenant: Tenant | None, backend: compat.Backend) -> compat.Machine:
    """Return this machine; of a container of gpushare the cards that it has."""
    status = session.client.status()
    if not status["driver_version"]:
        raise UserError(
            "gpushared has no driver to judge by: see gpushare doctor, or say for which machine: "
            f"{_ELSEWHERE}"
        )
    own = None if tenant is None else {card["index"] for card in tenant["cards"]}
    if tenant is not None and tenant["isolation"] == "exclusive":
        backend = "exclusive"
    return compat.Machine(
        parse(status["driver_version"]) or (),
        parse(status["cuda_version"]) or (),
        tuple(
            _card(card) for card in session.client.cards() if own is None or card["index"] in own
        ),
        backend,
    )


def _card(card: Card) -> compat.Card:
    return compat.Card(
        card["model"], parse(card["capability"]), card["brand"], datacenter=card["datacenter"]
    )


def _for_centres(brand: str) -> bool | None:
    return brand.lower() in {"tesla", "nvidia"} if brand else None


def _look(found: images.Found) -> tuple[compat.Image, str]:
    """Return the facts of an image, and what of it could not be looked at."""
    if found.root_fd is None:
        return facts.of(found.variables, found.args), found.note
    rootfs = Rootfs(found.root_fd)
    try:
        package = packages.find(rootfs)
        platform = this_platform()
        return facts.look(rootfs, found.variables, found.args, platform, package), found.note
    except OldKernelError as error:
        return facts.of(found.variables, found.args), str(error)


def _text(
    found: images.Found,
    note: str,
    here: compat.Machine,
    findings: tuple[compat.Finding, ...],
) -> str:
    lines = [printable(f"{found.kind} {found.name} on {_place(here)}")]
    if note:
        lines.append(printable(note))
    for one in findings:
        word = click.style(f"{one.level:<6}", fg=COLOURS[one.level])
        lines.append(word + printable(str(one)))
    return "\n".join(lines)


def _place(here: compat.Machine) -> str:
    """Return `driver 580.65.06 (CUDA 13.0), 2 cards: H200 (9.0), as interposer`."""
    said = f"driver {whole(here.driver)} " if here.driver else ""
    names = dict.fromkeys(
        f"{card.name or 'a card'} ({shown(card.capability) if card.capability else '?'})"
        for card in here.cards
    )
    cards = f", {count(len(here.cards), 'card')}: {', '.join(names)}" if names else ""
    return f"{said}(CUDA {shown(here.cuda)}){cards}, {here.backend}"


def _image(image: compat.Image) -> dict[str, Any]:
    return {
        "runtimes": [
            {"version": ".".join(map(str, one.version)), "where": one.where}
            for one in image.runtimes
        ],
        "requires": dict(image.requires),
        "requires_disabled": image.disabled,
        "cuda_compat": whole(image.compat) if image.compat else "",
        "precisions": dict(image.precisions),
    }


def _shown(here: compat.Machine) -> dict[str, Any]:
    return {
        "driver": whole(here.driver) if here.driver else "",
        "cuda": shown(here.cuda),
        "baseline": shown(here.baseline),
        "backend": here.backend,
        "cards": [
            {
                "name": card.name,
                "capability": shown(card.capability) if card.capability else "",
                "brand": card.brand,
                "mig": card.mig,
            }
            for card in here.cards
        ],
    }
