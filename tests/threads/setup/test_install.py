# SPDX-License-Identifier: Apache-2.0
"""Programs and libraries in a folder named by what is in it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpushare import install
from tests.unit.setup.test_install import RUNC, SOCKET, make_source


def test_many_that_install_at_once_all_have_it(tmp_path: Path) -> None:
    source = make_source(tmp_path)

    def made(_: int) -> install.Installation:
        one = install.install(tmp_path / "to", runtime=RUNC, socket=SOCKET, source=source)
        return install.activate(one)

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(made, range(16)))
    assert len(found) == 1
    names = sorted(path.name for path in (tmp_path / "to").iterdir())
    assert len(names) == 2
    assert names[1] == install.CURRENT
