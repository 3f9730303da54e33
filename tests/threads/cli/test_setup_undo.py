# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup --undo` runs gpushare-undo, and reports its errors as its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from gpushare.cli import gpushare
from gpushare.setup import undo

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def run(tmp_path: Path, script: str, *words: str) -> Result:
    """Run the command with `script` in place of gpushare-undo."""
    program = tmp_path / "gpushare-undo"
    program.write_text(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(undo, "UNDO", program)
        return CliRunner().invoke(gpushare, ["setup", "--undo", "--dry-run", *words])


@pytest.mark.parametrize(("status", "exit_code"), [(3, 3), (1, 1)])
def test_its_error_is_the_command_s(tmp_path: Path, status: int, exit_code: int) -> None:
    script = f"echo 'gpushare: these still use it: train.' >&2\nexit {status}\n"
    result = run(tmp_path, script)
    assert result.exit_code == exit_code
    assert result.stderr == "gpushare: these still use it: train.\n"


def test_its_steps_are_shown_with_their_diffs(tmp_path: Path) -> None:
    script = "echo 'would restore a'; echo '-old'; echo 'next  restart it'; echo 'keep  b'"
    shown = run(tmp_path, script)
    assert shown.stdout.splitlines()[:4] == [
        "would restore a",
        "-old",
        "next  restart it",
        "keep  b",
    ]
    assert json.loads(run(tmp_path, script, "--json").stdout) == [
        {"step": "restore a", "needed": True, "yours": False, "diff": "-old\n"},
        {"step": "restart it", "needed": False, "yours": True, "diff": ""},
        {"step": "b", "needed": False, "yours": False, "diff": ""},
    ]
