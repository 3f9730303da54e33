# SPDX-License-Identifier: Apache-2.0
"""`gpushare convert`: convert the GPU requests in a manifest to another system's keys."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare.cli.session import command as make_command
from gpushare.cli.session import completes
from gpushare.errors import ErrorCode, UserError
from gpushare.manifest import read
from gpushare.manifest.convert import convert
from gpushare.manifest.convert.targets import TARGETS
from gpushare.manifest.model import STDIN

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.manifest.convert import Converted

#: How the kind of a note is printed on stderr.
_KINDS: Final = {"lost": "no equivalent", "left": "not changed", "note": "note"}


@make_command("convert")
@click.argument("file", metavar="FILE", shell_complete=completes("files"))
@click.option(
    "--to", "target", type=click.Choice(tuple(TARGETS)), required=True, help="Target keys."
)
@click.option("-i", "--in-place", is_flag=True, help="Write the result to FILE.")
@click.option("--strict", is_flag=True, help="Write nothing if a key has no equivalent.")
def command(session: Session, file: str, target: str, in_place: bool, strict: bool) -> None:
    """Convert GPU requests in a manifest to another system's keys.

    FILE is a manifest of Kubernetes or docker compose, an ECS task definition or a config.json, or
    - for stdin. Only GPU requests change. Comments, order and quotes are kept. On stderr, convert
    lists each key that the target does not support, with its line.

    --to gpushare writes annotations and the runtime class, or variables for docker compose and ECS.
    --to hami writes the limits nvidia.com/gpu, gpumem and gpucores, and annotations. --to qgpu
    writes the limits tke.cloud.tencent.com/qgpu-memory and qgpu-core.

    The exit status is 1 if nothing could be written, or if --strict finds a key without an
    equivalent.
    """
    if in_place and file == STDIN:
        raise click.UsageError("--in-place requires a FILE other than -.")
    converted = convert(read(file), TARGETS[target])
    for note in converted.notes:
        session.note(
            f"{converted.file.path}:{note.line}: {_KINDS[note.what]}: {note.key}: {note.why}"
        )
    if strict and converted.lost:
        text = f"nothing was written: {len(converted.lost)} without an equivalent (--strict)"
        raise UserError(text, code=ErrorCode.INVALID)
    if in_place and converted.changed:
        _write(Path(file), converted.text)
    if session.json:
        session.show(_data(converted, in_place=in_place), str)
    elif not in_place:
        click.echo(converted.text, nl=False)
    if not converted.changed:
        session.note(f"{converted.file.path}: nothing to change")


def _data(converted: Converted, *, in_place: bool) -> dict[str, Any]:
    return {
        "file": converted.file.path,
        "to": converted.target.name,
        "changed": converted.changed,
        "containers": [
            {"name": container.name, "of": str(container.document), "line": container.line}
            for container in converted.containers
        ],
        "notes": [
            {"line": note.line, "key": note.key, "what": note.what, "why": note.why}
            for note in converted.notes
        ],
        **({} if in_place else {"text": converted.text}),
    }


def _write(path: Path, text: str) -> None:
    """Write `path` atomically: it keeps its mode, and a link stays a link."""
    path = path.resolve()
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            os.fchmod(descriptor, path.stat().st_mode & 0o7777)
            file.write(text)
        draft.rename(path)
    except BaseException:
        draft.unlink()
        raise
