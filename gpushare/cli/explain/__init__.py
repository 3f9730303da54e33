# SPDX-License-Identifier: Apache-2.0
"""`gpushare explain`: what a code, a topic, a manifest or an image means, and what to do."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpushare import topics
from gpushare.cli import session as shared
from gpushare.cli.config import of_daemon
from gpushare.cli.explain import entry
from gpushare.cli.prose import wrapped
from gpushare.errors import UserError

if TYPE_CHECKING:
    from gpushare.cli.session import Session

__all__ = ["command"]

STDIN: Final = "-"
_NOR: Final = "; there is no such file, container of this node, or image of docker or podman"


@shared.command("explain", example="gpushare explain CUDA_ERROR_OUT_OF_MEMORY")
@click.argument("words", nargs=-1, metavar="[FILE|CODE|TOPIC|IMAGE]")
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The node's; else that of the gpushared that answers, else /etc/gpushare/gpushare.yaml.",
)
def command(session: Session, words: tuple[str, ...], file: Path | None) -> None:
    """Explain a manifest, a code, a topic or an image.

    FILE is a manifest of Kubernetes, of docker compose, a task definition of ECS or a container's
    config.json; - is standard input. For each container: what every key of it means, in whatever
    system's words; which of them a runtime hears; which source wins; and what this node would
    give, by the same reading as when a container is made.

    CODE is an error of CUDA or of NVML, by its name in any spelling or its number (2, nvml 2), an
    XID (xid-79), an exit status (exit-3), an event of the log, or a message, as it was printed: of
    gpushare, of CUDA or of a framework. TOPIC is one of those that are listed without an argument.

    IMAGE is one that docker or podman have: what its own variables say, and what it is given for
    them alone. Of a container of this node it says where to look.

    A file comes before a code, that before a topic, and that before an image. Nothing is changed.
    The exit status is 1 where nothing is known of the word.
    """
    said = " ".join(words)
    if not said:
        session.show(entry.as_list(topics.entries()), lambda: "\n".join(entry.listed()))
    elif said == STDIN or _is_file(said):
        _file(session, said, file)
    elif said.startswith(("/", "./", "../")):
        raise UserError(_no_file(said))
    else:
        _entry(session, said, file)


def _is_file(said: str) -> bool:
    """Whether it is the path of a file; a message may be longer than any path is."""
    try:
        mode = Path(said).stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def _no_file(path: str) -> str:
    try:
        Path(path).stat()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        return f"{path}: {why or 'no path'}; name a file, a code, a topic or an image"
    return f"{path}: is no file; name one, or `gpushare validate {path}` looks at all in a folder"


def _file(session: Session, path: str, file: Path | None) -> None:
    # Imported here: a code needs no YAML.
    from gpushare.cli.explain import file as files  # noqa: PLC0415
    from gpushare.cli.explain import told  # noqa: PLC0415

    data = files.explained(path, file or of_daemon(session), is_named=file is not None)
    others = [] if path == STDIN else topics.find(path)
    session.show(
        {**data, "others": [one.name for one in others]}, lambda: "\n".join(told.lines(data))
    )
    if others:
        names = ", ".join(one.name for one in others)
        also = f"This is the file {path}. It may also be {names}."
        click.echo("\n".join(wrapped(also)), err=True)


def _entry(session: Session, said: str, file: Path | None) -> None:
    found = topics.find(said)
    if found:
        session.show(entry.as_data(found), lambda: "\n".join(entry.lines(found)))
        return
    from gpushare.cli.explain import image  # noqa: PLC0415

    if not image.may_be(said):
        raise UserError(entry.unknown(said))
    data = image.container(said, session.client) or image.explained(
        said, file or of_daemon(session), is_named=file is not None
    )
    if data is None:
        raise UserError(entry.unknown(said, _NOR))
    session.show(data, lambda: "\n".join(image.lines(data)))
