# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from gpushare.host.cgroups import WriteWatch


def test_a_write_of_the_same_is_a_write(tmp_path: Path) -> None:
    file = tmp_path / "cgroup.freeze"
    file.write_text("1")
    with closing(WriteWatch(file)) as written:
        assert not written.was_written()
        with file.open("r+b", buffering=0) as stream:
            stream.write(b"1")
        assert written.was_written()
        assert not written.was_written()
        file.read_text()
        assert not written.was_written()


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cgroup\.freeze"):
        WriteWatch(tmp_path / "cgroup.freeze")
