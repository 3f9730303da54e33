# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from gpushare.host.written import Written


def test_a_write_of_the_same_is_a_write(tmp_path: Path) -> None:
    file = tmp_path / "cgroup.freeze"
    file.write_text("1")
    with closing(Written(file)) as written:
        assert not written.again()
        with file.open("r+b", buffering=0) as stream:
            stream.write(b"1")
        assert written.again()
        assert not written.again()
        file.read_text()
        assert not written.again()


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cgroup\.freeze"):
        Written(tmp_path / "cgroup.freeze")
