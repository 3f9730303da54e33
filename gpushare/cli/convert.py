# SPDX-License-Identifier: Apache-2.0
"""`gpushare convert`: manifests in the words of another system."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare.cli.failure import ERROR, say
from gpushare.cli.session import command as make_command
from gpushare.convert import TARGETS, convert
from gpushare.manifest import STDIN, read

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.convert import Converted

#: What a line on stderr begins with, by what it says.
_WORDS: Final = {"lost": "no equivalent", "left": "left as it is", "note": "note"}


@make_command("convert", example="gpushare convert train.yaml --to gpushare --in-place")
@click.argument("file", metavar="FILE")
@click.option(
    "--to", "target", type=click.Choice(tuple(TARGETS)), required=True, help="Whose keys."
)
@click.option("-i", "--in-place", is_flag=True, help="Write FILE itself.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Where to write it; else stdout.",
)
@click.option("--strict", is_flag=True, help="Write nothing where something has no equivalent.")
def command(
    session: Session, file: str, target: str, in_place: bool, output: Path | None, strict: bool
) -> None:
    """Rewrite a manifest: requests of any known system in the keys of one.

    FILE is what kubectl or docker compose would read, an ECS task definition or a config.json; - is
    stdin. Only what asks for GPUs changes; comments, order and quotes stay. What the target has no
    key for is told on stderr, with its line.

    --to gpushare writes annotations and the runtime class, for docker compose and ECS variables.
    --to hami writes limits nvidia.com/gpu, gpumem and gpucores, and annotations. --to qgpu writes
    limits tke.cloud.tencent.com/qgpu-memory and qgpu-core.

    The exit status is 1 where nothing could be written, or with --strict where something has no
    equivalent.
    """
    if in_place and (file == STDIN or output is not None):
        raise click.UsageError("--in-place needs a FILE that is no -, and no --output.")
    made = convert(read(file), TARGETS[target])
    for one in made.said:
        click.echo(
            f"{made.file.path}:{one.line}: {_WORDS[one.what]}: {one.key}: {one.why}", err=True
        )
    if strict and made.lost:
        say(f"{len(made.lost)} of it without an equivalent, and --strict: nothing was written")
        click.get_current_context().exit(ERROR)
    written = Path(file) if in_place else output
    if written is not None and (made.changed or not in_place):
        _write(written, made.text)
    if session.json:
        session.show(_data(made, written), str)
    elif written is None:
        click.echo(made.text, nl=False)
    if not made.changed:
        click.echo(f"{made.file.path}: nothing to change", err=True)


def _data(made: Converted, written: Path | None) -> dict[str, Any]:
    return {
        "file": made.file.path,
        "to": made.target.name,
        "changed": made.changed,
        "containers": [
            {"name": one.name, "of": str(one.document), "line": one.line} for one in made.containers
        ],
        "said": [
            {"line": one.line, "key": one.key, "what": one.what, "why": one.why}
            for one in made.said
        ],
        **({"text": made.text} if written is None else {"output": str(written)}),
    }


def _write(path: Path, text: str) -> None:
    """Write `path` whole or not at all; a file that is there keeps its mode, a link stays one.

    What is there and no regular file is written to: /dev/null is not to become one.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o666)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            if path.exists():
                os.fchmod(descriptor, path.stat().st_mode & 0o7777)
            file.write(text)
        draft.rename(path)
    except BaseException:
        draft.unlink()
        raise
