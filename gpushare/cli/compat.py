# SPDX-License-Identifier: Apache-2.0
"""`gpushare compat`: check whether an image runs on a driver and its cards."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare import compatibility, images
from gpushare.cli import session as shared
from gpushare.cli.text import count, printable
from gpushare.client import UnknownTenant
from gpushare.compatibility import image as facts
from gpushare.compatibility import rules
from gpushare.compatibility.rules import cuda_text, driver_text, parse_version
from gpushare.errors import ExitStatus, UserError
from gpushare.oci import cuda_compat as packages
from gpushare.oci.elf import this_platform
from gpushare.oci.rootfs import OldKernelError, Rootfs

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.compatibility.model import ModelFormats
    from gpushare.protocol.rows import CardRow, TenantStatus

STATUS: Final = {"ok": 0, "warn": ExitStatus.DEGRADED, "refuse": ExitStatus.REFUSED}
COLOURS: Final = {"ok": "green", "warn": "yellow", "refuse": "red"}


@shared.command("compat")
@click.argument(
    "name", metavar="IMAGE|CONTAINER|PATH", shell_complete=shared.completes("files", "containers")
)
@shared.model_option
def command(session: Session, name: str, model: ModelFormats) -> None:
    """Check whether an image runs on a driver and its cards.

    They are those of this machine. A PATH begins with / or . and is a root directory or a bundle.
    Any other argument is a container of gpushare, Docker or Podman, or an image that Docker or
    Podman has, whose layers are mounted: this takes root. Nothing in the image is executed, and no
    link is followed out of it.

    The check covers the image's CUDA runtimes, its NVIDIA_REQUIRE_ variables, its cuda-compat, and
    the data types on its command line. docs/reference/compatibility.md lists the rules.

    The exit status is 4 for a warning, and 3 if the image does not run.
    """
    tenant = _tenant(session, name)
    machine = _machine(session, tenant)
    session.progress(f"reading {name}")
    with images.open_image(name, tenant["pid"] if tenant is not None else 0) as target:
        image, note = _look(target)
        precisions = facts.requested_precisions(target.args, target.variables, model)
    image = replace(image, precisions=precisions)
    findings = compatibility.evaluate_image(image, machine)
    worst = rules.worst(findings)
    answer = {
        "name": target.name,
        "kind": target.kind,
        "note": note,
        "result": worst,
        "machine": _shown(machine),
        "findings": [asdict(finding) for finding in findings],
    }
    session.show(answer, lambda: _text(target, note, machine, findings))
    if STATUS[worst]:
        click.get_current_context().exit(STATUS[worst])


def _tenant(session: Session, name: str) -> TenantStatus | None:
    """Return the running container `name` of gpushare, None if there is none."""
    if name.startswith(("/", ".")):
        return None
    try:
        tenant = session.client.tenant(name)
    except UnknownTenant:
        return None
    return tenant if tenant["pid"] else None


def _machine(session: Session, tenant: TenantStatus | None) -> rules.Machine:
    """Return this machine, with only the cards of `tenant` if it is not None."""
    status = session.client.status()
    if not status["driver_version"]:
        raise UserError(
            "gpushared has no driver to check against. To find the cause, run gpushare doctor."
        )
    own = None if tenant is None else {card["index"] for card in tenant["cards"]}
    is_whole = tenant is not None and tenant["isolation"] == "exclusive"
    return rules.Machine(
        parse_version(status["driver_version"]) or (),
        parse_version(status["cuda_version"]) or (),
        tuple(
            card_facts(card)
            for card in session.client.cards()
            if own is None or card["index"] in own
        ),
        "exclusive" if is_whole else "interposer",
    )


def card_facts(card: CardRow) -> rules.CardFacts:
    """Return what the rules of compatibility need of a card."""
    return rules.CardFacts(
        card["model"],
        parse_version(card["compute_capability"]),
        card["brand"],
        datacenter=card["is_datacenter"],
    )


def _look(target: images.ImageTarget) -> tuple[rules.Image, str]:
    """Return the facts of an image, and a note about what could not be read."""
    if target.root_fd is None:
        return facts.image_facts(target.variables, target.args), target.note
    rootfs = Rootfs(target.root_fd)
    try:
        package = packages.find(rootfs)
        platform = this_platform()
        return facts.inspect_image(
            rootfs, target.variables, target.args, platform, package
        ), target.note
    except OldKernelError as error:
        return facts.image_facts(target.variables, target.args), str(error)


def _text(
    target: images.ImageTarget,
    note: str,
    machine: rules.Machine,
    findings: tuple[rules.CompatibilityFinding, ...],
) -> str:
    lines = [printable(f"{target.kind} {target.name} on {_place(machine)}")]
    if note:
        lines.append(printable(note))
    for finding in findings:
        word = click.style(f"{finding.level:<7}", fg=COLOURS[finding.level])
        lines.append(word + printable(str(finding)))
    return "\n".join(lines)


def _place(machine: rules.Machine) -> str:
    """Return `driver 580.65.06 (CUDA 13.0), 2 cards: H200 (9.0), as interposer`."""
    driver = f"driver {driver_text(machine.driver)} " if machine.driver else ""
    names = dict.fromkeys(
        f"{card.name or 'a card'} ({cuda_text(card.capability) if card.capability else '?'})"
        for card in machine.cards
    )
    cards = f", {count(len(machine.cards), 'card')}: {', '.join(names)}" if names else ""
    return f"{driver}(CUDA {cuda_text(machine.cuda)}){cards}, {machine.backend}"


def _shown(machine: rules.Machine) -> dict[str, Any]:
    return {
        "driver": driver_text(machine.driver) if machine.driver else "",
        "cuda": cuda_text(machine.cuda),
        "backend": machine.backend,
        "cards": [
            {
                "name": card.name,
                "capability": cuda_text(card.capability) if card.capability else "",
                "brand": card.brand,
            }
            for card in machine.cards
        ],
    }
