# SPDX-License-Identifier: Apache-2.0
"""What bash, zsh and fish complete, asked of the real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.cli.commands import COMMANDS
from tests.unit.cli.conftest import CARD, tenant
from tests.unit.cli.fake_daemon import AnsweringDaemon, rows

#: As the shell has it when the user presses Tab after `LINE`.
BASH = """\
eval "$(gpushare completion bash)"
compopt() { echo "files: $2"; }
IFS=' ' read -r -a COMP_WORDS <<< "$LINE"
[[ $LINE == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_gpushare_completion gpushare
printf '%s\\n' "${COMPREPLY[@]}"
"""


ZSH = """\
compdef() { : }
_describe() { printf '%s\\n' "${(@)completions_with_descriptions%%:*}" }
compadd() { printf '%s\\n' "${(@)completions}" }
_path_files() { echo "files $*" }
eval "$(gpushare completion zsh)"
words=("${(@s: :)LINE}")
CURRENT=${#words}
_gpushare_completion
"""


FISH = """\
gpushare completion fish | source
complete --do-complete "$LINE" | string split -f 1 \\t
"""


def completed(daemon: AnsweringDaemon, shell: str, script: str, line: str) -> list[str]:
    """Return what a shell offers after `line`."""
    program = shutil.which(shell)
    assert program
    done = subprocess.run(
        [program, *(["-f"] if shell == "zsh" else []), "-c", script],
        env={
            **os.environ,
            "GPUSHARE_SOCKET": str(daemon.path),
            "HOME": str(daemon.path.parent),
            "LINE": line,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
        cwd=daemon.path.parent,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def in_bash(daemon: AnsweringDaemon, line: str) -> list[str]:
    return completed(daemon, "bash", BASH, line)


@pytest.mark.parametrize(
    ("shell", "script"),
    [
        ("bash", BASH),
        pytest.param("zsh", ZSH, marks=pytest.mark.needs("shells")),
        pytest.param("fish", FISH, marks=pytest.mark.needs("shells")),
    ],
)
def test_each_shell_completes_commands_containers_and_cards(
    daemon: AnsweringDaemon, shell: str, script: str
) -> None:
    assert sorted(completed(daemon, shell, script, "gpushare re")) == [
        "report",
        "restore",
        "resume",
    ]
    assert sorted(completed(daemon, shell, script, "gpushare why ")) == ["serve", "train"]
    assert completed(daemon, shell, script, "gpushare why tr") == ["train"]
    assert set(completed(daemon, shell, script, "gpushare card cordon ")) == {"0", CARD["uuid"]}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gpushare ", list(COMMANDS)),
        ("gpushare card policy ", ["0", CARD["uuid"]]),
        ("gpushare stop train serv", ["serve"]),
        ("gpushare move train --card ", ["0", CARD["uuid"]]),
        ("gpushare queue cancel ", ["3f2a8c01"]),
        ("gpushare history tr", ["train"]),
        ("gpushare set train --over-quota k", ["kill"]),
        ("gpushare explain gate-bypass-d", ["files: default", "gate-bypass-detected"]),
        ("gpushare validate ./", ["files: default", ""]),
    ],
)
def test_what_bash_offers(daemon: AnsweringDaemon, line: str, offered: list[str]) -> None:
    daemon.answers["queue"] = rows({"ticket": "3f2a8c01", "name": "", "requests": "4 GiB"})
    assert dict.fromkeys(in_bash(daemon, line)) == dict.fromkeys(offered)


def test_nothing_is_offered_that_a_shell_would_execute(daemon: AnsweringDaemon) -> None:
    names = ["$(reboot)", "a;b", "two words", "-x", "`id`", "line\nplain,evil", "ok-1"]
    daemon.answers["tenants"] = rows(*(tenant(name, 1, 4) for name in names))
    assert in_bash(daemon, "gpushare why ") == ["ok-1"]
