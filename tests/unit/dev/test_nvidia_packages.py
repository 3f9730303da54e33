# SPDX-License-Identifier: Apache-2.0
"""What is fetched of NVIDIA's driver is what was pinned."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apply
import nvidia_packages
import pytest

from tests import conftest
from tests.real_driver import RealDriver
from tools.check import sources
from tools.check.command import ROOT


def test_a_package_of_other_content_is_not_unpacked(tmp_path: Path) -> None:
    package = next(iter(nvidia_packages.releases()[nvidia_packages.GATE]))
    (tmp_path / "pool" / package).parent.mkdir(parents=True)
    (tmp_path / "pool" / package).write_bytes(b"!<arch>\n")
    with pytest.raises(apply.StepError, match=f"{package}: SHA-256 .* not unpacked"):
        nvidia_packages.make(tmp_path, nvidia_packages.GATE, f"{tmp_path.as_uri()}/pool/")
    assert list((tmp_path / "real-driver").iterdir()) == []


def test_where_it_could_not_be_fetched_the_gate_says_so_and_all_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RealDriver, "is_there", False)
    lines: list[str] = []
    reporter: Any = SimpleNamespace(write_line=lines.append)
    conftest.GateOnly().pytest_terminal_summary(reporter)
    assert lines == [f"skipped what runs on {RealDriver.MISSING}"]
    marks = {"real_driver": [pytest.mark.real_driver]}
    call = SimpleNamespace(params={"real_driver": nvidia_packages.GATE})
    test: Any = SimpleNamespace(iter_markers=lambda name: marks.get(name, []), callspec=call)
    assert not conftest._is_of_the_gate(test)
    with pytest.raises(pytest.fail.Exception, match=RealDriver.MISSING):
        conftest.pytest_runtest_setup(test)


def test_no_program_library_or_archive_is_in_the_repository() -> None:
    """Also none of NVIDIA's: an ELF file, a Debian package, a wheel, a compressed file."""
    known = (b"\x7fELF", b"!<arch>", b"PK\x03\x04", b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
    files = (path for path in sources.files() if (ROOT / path).is_file())
    heads = {path: (ROOT / path).read_bytes()[:8] for path in files}
    assert len(heads) > 1000
    assert [path for path, head in heads.items() if head.startswith(known)] == []
