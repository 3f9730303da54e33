"""The tables of the driver's symbols: how headers are read, and what the committed files hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from libhook.table import headers


def test_a_wheel_that_pip_cannot_fetch_is_an_error_that_shows_the_command(tmp_path: Path) -> None:
    with pytest.raises(headers.DownloadError, match=r"pip download .*not a requirement"):
        headers.download("not a requirement", tmp_path)
