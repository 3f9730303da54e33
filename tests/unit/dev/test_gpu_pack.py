# SPDX-License-Identifier: Apache-2.0
"""What travels to a machine with a card fits there."""

from __future__ import annotations

from pathlib import Path

import pytest

from libhook.table import headers
from tools.gpu import programs
from tools.gpu.pack import CARRIED_MOST, MIB, PackSizes, refusal
from tools.gpu.report import NotMeasured


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        (PackSizes(CARRIED_MOST, 19 * MIB), ""),
        (PackSizes(CARRIED_MOST + MIB, 0), "build/carried is 46.0 MiB, more than 45 MiB"),
        (PackSizes(CARRIED_MOST, 20 * MIB), "what travels is 65.0 MiB, more than 64 MiB"),
    ],
)
def test_too_much_is_refused(sizes: PackSizes, why: str) -> None:
    assert refusal(sizes) == why


def test_the_runtime_library_is_that_of_nvcc_or_is_named_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object) -> Path:
        raise headers.DownloadError("no network")

    nvcc, library = tmp_path / "bin" / "nvcc", tmp_path / "lib64" / programs.CUDART_STATIC
    for file in (nvcc, library):
        file.parent.mkdir()
        file.touch(mode=0o755)
    monkeypatch.setattr(headers, "wheel", offline)
    monkeypatch.setenv("PATH", str(nvcc.parent))
    assert programs._static_cudart("12.9") == library
    library.unlink()
    with pytest.raises(NotMeasured, match="of nvcc or from PyPI: no network"):
        programs._static_cudart("12.9")
