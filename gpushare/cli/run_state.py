# SPDX-License-Identifier: Apache-2.0
"""`gpushare pause`, `resume` and `stop`: whether containers run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from gpushare import protocol
from gpushare.cli import session as shared
from gpushare.cli.session import containers_argument, for_each_container
from gpushare.cli.status import tenant_name
from gpushare.cli.text import printable
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol.rows import TenantStatus


timeout_option: Final = click.option(
    "-t",
    "--timeout",
    type=click.IntRange(0, protocol.STOP_TIMEOUT_MAX_SECONDS),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Seconds after which a stopped container's processes are all killed.",
)


@shared.command("pause")
@containers_argument
@click.option(
    "--reason", default="", metavar="TEXT", help="Reason, shown by ps and in the history."
)
def pause(session: Session, containers: tuple[str, ...], reason: str) -> None:
    """Pause all processes of one or more containers.

    A paused container keeps its memory and its allocation. Other containers get its share of the
    compute. Work that was already submitted to the card completes. The pause lasts until
    `gpushare resume`, also across restarts of gpushared, but not of the container. If the engine
    unpauses the container, gpushare pauses it again some seconds later. The engine can stop or
    remove a paused container as usual.

    A container that is not running yet, or that shares its cgroup with other processes (`gpushare
    run` without root), is refused with exit status 3.
    """
    for_each_container(
        session,
        containers,
        lambda one: session.client.pause(one, reason),
        lambda tenant: _line(tenant, "paused"),
    )


@shared.command("resume")
@containers_argument
def resume(session: Session, containers: tuple[str, ...]) -> None:
    """Resume containers that were paused, or frozen by the audit.

    The audit freezes a container that is over quota. After a resume it warns first, and freezes the
    container again if it stays over quota. Increase the quota with `gpushare set`, or stop the
    container with `gpushare stop`. To resume a container that an engine paused, use the engine, for
    example `docker unpause`.
    """
    for_each_container(
        session, containers, session.client.resume, lambda tenant: _line(tenant, "resumed")
    )


@shared.command("stop")
@containers_argument
@click.option(
    "--signal",
    type=click.Choice(protocol.STOP_SIGNALS),
    default="TERM",
    show_default=True,
    help="Signal to send to the container's first process. KILL is sent to all processes.",
)
@timeout_option
@click.option(
    "--reason", default="", metavar="TEXT", help="Reason, recorded in the log and the history."
)
def stop(
    session: Session, containers: tuple[str, ...], signal: str, timeout: int, reason: str
) -> None:
    """Stop one or more containers.

    gpushare sends a signal to the first process of each container, and SIGKILL to all processes
    after the timeout. A paused or frozen container is resumed with the signal. A second stop does
    not extend the timeout of the first one. The command returns at once; `gpushare ps` lists the
    containers until they have exited. The engine is not involved and starts the container again if
    its restart policy says so. To keep it stopped, stop it in the engine (`docker stop`, `kubectl
    delete`).

    A container that is not running yet, or that shares its cgroup with other processes (`gpushare
    run` without root), is refused with exit status 3.
    """
    for_each_container(
        session,
        containers,
        lambda one: session.client.stop(one, signal, timeout, reason),
        lambda tenant: _line(tenant, _stopped(signal, timeout)),
    )


def _line(tenant: TenantStatus, done: str) -> str:
    return printable(f"{tenant_name(tenant)}: {done}")


def _stopped(signal: str, timeout: int) -> str:
    if signal == "KILL" or not timeout:
        return "killed"
    return f"sent SIG{signal}, will be killed in {timeout} s"


# --- `gpushare evict`, `restore` and `move`: where the GPU memory of containers is ---

_reason_option: Final = click.option(
    "--reason", default="", metavar="TEXT", help="Reason, recorded in the log and the history."
)


@shared.command("evict")
@containers_argument
@click.option(
    "--hold",
    is_flag=True,
    help="Keep the memory evicted until gpushare restore, even if the program uses CUDA.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Ignore claims of managed and shared memory. Shared memory is then one copy each.",
)
@_reason_option
def evict(
    session: Session, containers: tuple[str, ...], hold: bool, force: bool, reason: str
) -> None:
    """Move the GPU memory of containers to host memory.

    The processes keep running. Other containers can be allocated what an evicted container had of
    its card. Its next CUDA call waits until the memory is back on a card, which happens as soon as
    one has room. The program does not notice it otherwise.

    This needs driver 570 or newer, and host memory within `evict.host_memory` and within the
    container's own memory limit. A container with a whole card, a MIG instance, managed memory or a
    process that has shared GPU memory (CUDA IPC, exported or imported memory), a client of an MPS
    server, and a paused container are refused (exit status 3), and so is one that the driver cannot
    evict; they continue as before. The command returns when the memory is off the card.

    What a container has of managed and shared memory is what its processes claim. With --force, the
    driver decides: it refuses managed memory. Memory that was really shared is separated without an
    error, and each process has a copy of its own.
    """
    for_each_container(
        session,
        containers,
        lambda one: session.client.evict(one, reason, hold=hold, force=force),
        _evicted_line,
    )


@shared.command("restore")
@containers_argument
@_reason_option
def restore(session: Session, containers: tuple[str, ...], reason: str) -> None:
    """Move the GPU memory of evicted containers back to a card.

    The memory goes to the card that it came from, or to another one of the same model if that has
    no room, the driver is 580 or newer, and the container has its device node. If no card has room,
    the container stays evicted (exit status 3).
    """
    for_each_container(
        session,
        containers,
        lambda one: session.client.restore(one, reason),
        lambda tenant: _line(tenant, f"restored to {_cards(tenant)}"),
    )


@shared.command("move")
@shared.container_argument
@click.option(
    "--card",
    required=True,
    metavar="CARD",
    shell_complete=shared.completes("cards"),
    help="Index or UUID of the card to which the container is moved.",
)
@_reason_option
def move(session: Session, container: str, card: str, reason: str) -> None:
    """Move a running container to another card.

    Its GPU memory is evicted and restored to the other card, and its program continues there. This
    needs driver 580 or newer, two cards of the same model, and the device node of the other card in
    the container: commands of `gpushare run` have it, and containers if `evict.moves` is on when
    they are created. What cannot be evicted cannot be moved (`gpushare evict --help`). If the card
    has no room, the container stays where it is (exit status 3).
    """
    tenant = session.client.move(container, card, reason)
    session.show(tenant, lambda: _line(tenant, f"moved to {_cards(tenant)}"))


def _evicted_line(tenant: TenantStatus) -> str:
    evicted = tenant["eviction"]
    if evicted is None:  # its program has asked for it back already
        return _line(tenant, f"evicted and restored to {_cards(tenant)}")
    return _line(tenant, f"evicted, {format_size(evicted['bytes'])} in host memory")


def _cards(tenant: TenantStatus) -> str:
    return "card " + ", ".join(str(card["index"]) for card in tenant["cards"])
