# SPDX-License-Identifier: Apache-2.0
"""`gpushare k8s resources`: what it prints, and its exit statuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli

WRITE = ("k8s", "resources", "--format", "alauda")


def test_what_is_written_passes_its_own_check(cli: Cli, tmp_path: Path) -> None:
    written = cli(*WRITE)
    assert written.exit_code == 0
    file = tmp_path / "resources.yaml"
    file.write_text(written.stdout)
    checked = cli(*WRITE, "--check", str(file))
    assert (checked.exit_code, checked.stdout) == (0, f"{file}: ok\n")


def test_the_exit_status_says_whether_something_is_wrong_or_only_differs(
    cli: Cli, tmp_path: Path
) -> None:
    right = cli(*WRITE).stdout
    file = tmp_path / "resources.yaml"
    file.write_text(right.replace("defaultValue: '20'", "defaultValue: '30'"))
    line = file.read_text().splitlines().index("  defaultValue: '30'") + 1
    differs = cli(*WRITE, "--check", str(file))
    assert differs.exit_code == 4
    assert differs.stdout == (
        f"{file}:{line}:17: warning: data.defaultValue=30: differs from gpushare's. Write 20.\n"
        f"{file}: 1 difference\n"
    )
    file.write_text(right.replace("namespace: kube-public", "namespace: default", 1))
    wrong = cli(*WRITE, "--check", str(file), "--json")
    assert wrong.exit_code == 1
    (finding,) = json.loads(wrong.stdout)["findings"]
    assert (finding["line"], finding["level"]) == (5, "error")
    file.write_text("")
    assert cli(*WRITE, "--check", str(file), "--group", "mps").exit_code == 1
