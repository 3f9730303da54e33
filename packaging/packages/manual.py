# SPDX-License-Identifier: Apache-2.0
"""Manual pages and completion files, from the command line itself."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Final

import click
from click_man.core import write_man_pages

from gpushare.cli import gpushare as command_line
from gpushare.cli.completion import script

from .workspace import Workspace, run

#: The daemons, and what the first line of their page says.
DAEMONS: Final = {
    "gpushared": ("gpushare.daemon.__main__", "shares GPUs between containers"),
    "gpushare-exporter": ("gpushare.exporter.__main__", "gpushare metrics for Prometheus"),
    "gpushare-node": ("gpushare.kubernetes.__main__", "gpushare on a Kubernetes node"),
}
#: A line of text that roff would take for a request, for example ".yaml, or".
_NOT_A_REQUEST: Final = re.compile(r"(?m)^(?:'|\.(?![A-Z]{2}\b|B\b))")
COMPLETIONS: Final = {
    "bash": "usr/share/bash-completion/completions/gpushare",
    "zsh": "usr/share/zsh/vendor-completions/_gpushare",
    "fish": "usr/share/fish/vendor_completions.d/gpushare.fish",
}


def write_pages(workspace: Workspace, stage: Path) -> None:
    """Write the manual pages of all commands and daemons, compressed."""
    commands, daemons = (stage / f"usr/share/man/man{section}" for section in (1, 8))
    for folder in (commands, daemons):
        folder.mkdir(parents=True)
    date = run(
        ["date", "--utc", f"--date=@{workspace.epoch}", "+%Y-%m-%d"], cwd=workspace.root
    ).strip()
    _prepare(command_line)
    write_man_pages(
        "gpushare", command_line, version=workspace.version, target_dir=str(commands), date=date
    )
    for name, (module, description) in DAEMONS.items():
        page = run(
            [
                "argparse-manpage",
                "--module",
                module,
                "--function",
                "_parser",
                "--prog",
                name,
                "--project-name",
                "gpushare",
                "--description",
                description,
                "--version",
                workspace.version,
                "--manual-section",
                "8",
                "--manual-title",
                "gpushare",
            ],
            cwd=workspace.root,
            env=workspace.environment(),
        )
        (daemons / f"{name}.8").write_text(page, encoding="utf-8")
    for path in sorted(stage.glob("usr/share/man/man*/*")):
        text = _NOT_A_REQUEST.sub(r"\\&\g<0>", path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
        compress(path)


def _prepare(command: click.Command) -> None:
    """Complete a tree of commands, which are imported only when they are called.

    Also sets the short help to the whole first line, which click-man would cut.
    """
    command.short_help = command.short_help or (command.help or "").strip().partition("\n")[0]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            command.add_command(subcommand, name)
            _prepare(subcommand)


def compress(path: Path) -> None:
    """Replace a file by its compressed form, without a name and a time."""
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    path.unlink()


def write_completions(stage: Path) -> None:
    """Write the completion file of each shell."""
    for shell, name in COMPLETIONS.items():
        path = stage / name
        path.parent.mkdir(parents=True)
        path.write_text(script(command_line, shell), encoding="utf-8")
