# SPDX-License-Identifier: Apache-2.0
"""Records what `explain`, `validate` and `convert` say of manifests, called in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from tests.guard import generate, masks

TARGETS: Final = ("gpushare", "hami", "qgpu")
CONFIG: Final = "# the configuration of gpushared, as it is installed\n"


def record(tell: Callable[[str], None]) -> dict[str, Any]:
    """Record each manifest of the corpus, and 180 generated ones."""
    with tempfile.TemporaryDirectory(prefix="gpushare-guard-") as place:
        return _recorded(Path(place), tell)


def _recorded(place: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    config = place / "gpushare.yaml"
    config.write_text(CONFIG)
    for path in generate.manifests():
        name = str(path.relative_to(generate.CORPUS))
        found[name] = _of_one(path, config)
    tell("commands: tests/corpus")
    for name, text in (*generate.pods(120), *generate.configs(60)):
        path = place / name
        path.write_text(text)
        found[name] = _of_one(path, config)
    tell("commands: generated manifests")
    places = {str(generate.CORPUS): "<corpus>", str(place): "<root>"}
    recorded: dict[str, Any] = masks.of_place(masks.of_moment(found), places)
    return recorded


def _of_one(path: Path, config: Path) -> dict[str, Any]:
    file = str(path)
    found = {
        "explain": call("explain", file, "--config", str(config), "--json"),
        "validate": call("validate", file, "--json"),
        "validate lenient": call("validate", file, "--lenient", "--json"),
    }
    for target in TARGETS:
        found[f"convert {target}"] = call("convert", file, "--to", target, "--json")
    return found


def call(*words: str, socket: str = "/nonexistent/control.sock") -> dict[str, Any]:
    """Call the command line; return its exit status, its JSON, and whether it wrote to stderr."""
    script, *_ = entry_points(group="console_scripts", name="gpushare")
    main = script.load()
    out, err = io.StringIO(), io.StringIO()
    status: Any = 0
    with (
        patch.object(sys, "argv", ["gpushare", *words]),
        patch.dict(os.environ, {"GPUSHARE_SOCKET": socket, "COLUMNS": "200", "TZ": "UTC"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
    try:
        data = json.loads(out.getvalue() or "null")
    except ValueError:
        data = out.getvalue()
    if isinstance(data, dict) and isinstance(data.get("text"), str):
        data["text"] = data["text"].splitlines()  # a manifest, of which each line counts
    return {"status": status, "json": data, "error": err.getvalue()}
