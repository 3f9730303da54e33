# SPDX-License-Identifier: Apache-2.0
"""`gpushare explain FILE`: what a manifest's keys mean, which apply, and the effective request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    Cli = Callable[..., Result]
    Explain = Callable[..., Result]


@pytest.fixture
def explain(cli: Cli, tmp_path: Path) -> Explain:
    """Explain a text as a file, for a node that says nothing, or `config`."""

    def run(text: str, *options: str, config: str = "", name: str = "manifest.yaml") -> Result:
        (tmp_path / name).write_text(text)
        (tmp_path / "gpushare.yaml").write_text(config)
        file = str(tmp_path / "gpushare.yaml")
        return cli("explain", str(tmp_path / name), "--config", file, *options)

    return run


def test_a_file_that_is_no_manifest_is_an_error_that_names_it(explain: Explain, cli: Cli) -> None:
    nothing = explain("a: 1\n")
    assert nothing.exit_code == 1
    assert "no container and no GPU setting" in nothing.stderr
    broken = explain("a: [1\n")
    assert broken.exit_code == 1
    assert "manifest.yaml" in broken.stderr
    missing = cli("explain", "not-there.yaml")
    assert missing.exit_code == 1
    assert "is unknown" in missing.stderr
