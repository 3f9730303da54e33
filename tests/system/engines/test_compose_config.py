# SPDX-License-Identifier: Apache-2.0
"""The record of what `docker compose config` prints, by which compose files are read."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.stack.distribution import DEBIAN13, DistributionRoot

CORPUS = Path(__file__).parents[2] / "unit/manifest/compose"


@pytest.mark.needs("debian13")
def test_debian_13_prints_what_is_recorded(tmp_path: Path) -> None:
    with closing(DistributionRoot(DEBIAN13, tmp_path, host_paths=(CORPUS,))) as machine:
        argv = machine.argv("docker", "compose", "--project-directory", str(CORPUS), "config")
        printed = subprocess.run(argv, capture_output=True, text=True, check=False, env={})
    assert (printed.stdout, printed.returncode) == ((CORPUS / "config.yaml").read_text(), 0)
