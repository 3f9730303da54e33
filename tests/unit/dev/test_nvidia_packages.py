# SPDX-License-Identifier: Apache-2.0
"""What is fetched of NVIDIA's driver is what was pinned."""

from __future__ import annotations

from pathlib import Path

import apply
import nvidia_packages
import pytest


def test_a_package_of_other_content_is_not_unpacked(tmp_path: Path) -> None:
    package = next(iter(nvidia_packages.releases()[nvidia_packages.GATE]))
    (tmp_path / "pool" / package).parent.mkdir(parents=True)
    (tmp_path / "pool" / package).write_bytes(b"!<arch>\n")
    with pytest.raises(apply.StepError, match=f"{package}: SHA-256 .* not unpacked"):
        nvidia_packages.make(tmp_path, nvidia_packages.GATE, f"{tmp_path.as_uri()}/pool/")
    assert list((tmp_path / "real-driver").iterdir()) == []
