# SPDX-License-Identifier: Apache-2.0
"""Writes configs/grafana."""

from __future__ import annotations

from pathlib import Path

from . import texts

if __name__ == "__main__":
    folder = Path(__file__).resolve().parents[2] / "configs/grafana"
    for name, text in texts().items():
        (folder / name).write_text(text, encoding="utf-8")
