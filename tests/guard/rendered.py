# SPDX-License-Identifier: Apache-2.0
"""Records what is rendered without a daemon: chart and policies, reports, the plan of a setup."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import yaml

from gpushare.daemon.store.history import History
from gpushare.history import FOLDER
from gpushare.history.reports import REPORTS
from tests.guard import masks
from tests.guard.commands import call
from tests.stack.program import Missing, find
from tests.unit.history import world
from tests.unit.setup import machine

_TREE: Final = Path(__file__).resolve().parents[2]
_HOUR: Final = 3600.0
#: Values of the chart: those of configs/kubernetes, and everything that it has.
_VALUES: Final[dict[str, dict[str, Any]]] = {
    "annotations": {"mode": "annotations"},
    "plugin": {"mode": "plugin"},
    "dra": {"mode": "dra"},
    "remove": {"mode": "dra", "state": "absent"},
    "everything": {
        "mode": "dra",
        "admission": {"validate": "strict", "nvidia": True, "translate": "v1"},
        "metrics": {
            "enabled": True,
            "compat": ["hami", "dcgm"],
            "serviceMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboards": {"enabled": True},
        },
        "viewRole": {"enabled": True, "aggregateToView": True},
    },
}
_FORMATS: Final = ("table", "csv", "json", "markdown", "html")
_SETUPS: Final = (
    [],
    ["--metrics"],
    ["--simulate", "t4"],
    ["--undo"],
    ["--again"],
    *(["--kubernetes", mode] for mode in ("annotations", "plugin", "dra")),
    *(["--runtime", engine] for engine in ("docker", "containerd", "crio", "podman")),
    ["--low-level", "crun"],
)


def record(tell: Callable[[str], None]) -> dict[str, Any]:
    """Record all of it."""
    with tempfile.TemporaryDirectory(prefix="gpushare-guard-") as place:
        return _recorded(Path(place), tell)


def _recorded(place: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    found = {"reports": _reports(place), "setup": _setup(place), "policies": _policies()}
    found["chart"] = _chart(place, tell)
    tell("chart, policies, reports and setup")
    recorded: dict[str, Any] = masks.of_place(
        masks.of_moment(found), {str(place): "<root>", str(_TREE): "<tree>"}
    )
    return recorded


def _reports(place: Path) -> dict[str, Any]:
    """Return each report, in each format, of a node whose history is constructed."""
    actors = [
        world.Actor("team-a/train/main", lambda at: (1 + at / _HOUR, 25, at == _HOUR), uid=1000),
        world.Actor("team-b/serve/main", lambda _: (1, 0, 0), cards=(1,), labels={"team": "b"}),
        world.Actor(
            "whole", lambda _: (8, 90, 0), cards=(0, 1), isolation="exclusive", begin=_HOUR
        ),
    ]
    world.record(place / FOLDER, actors, 1.9 * _HOUR, restarts=(_HOUR,))
    events = History(place, "boot", days=7.0, most_bytes=1 << 20)
    frozen = {"tenant": "team-a/train/main", "card": world.UUIDS[0], "used_bytes": 5 << 30}
    events.note(world.T0 + _HOUR, "over-quota-frozen", "warning", frozen)
    events.close(20)
    config = place / "report.yaml"
    prices = "prices: {currency: EUR, gpu_hour: 2, gib_hour: 0.5}"
    config.write_text(f"state_dir: {place}\n{prices}\n")
    period = ["--since", "2027-01-15T08:00", "--until", "2027-01-15T10:30", "--config", str(config)]
    found = {}
    with patch("time.time", lambda: world.T0 + 3 * _HOUR):
        for name in REPORTS:
            for form in _FORMATS:
                found[f"{name} {form}"] = _lines(
                    call("report", name, *period, "--for", "10m", "--format", form)
                )
            found[f"{name} by user"] = _lines(call("report", name, *period, "--by", "user"))
    return found


def _setup(place: Path) -> dict[str, Any]:
    """Return the steps of setups of a machine, as text and as JSON."""
    root = place / "machine"
    root.mkdir()
    machine.make(root)
    found = {}
    for words in _SETUPS:
        for how in ([], ["--json"]):
            said = call("setup", "--root", str(root), "--dry-run", *words, *how)
            found[" ".join((*words, *how))] = _lines(said)
    return found


def _policies() -> dict[str, Any]:
    sys.path.insert(0, str(_TREE / "packaging"))
    from packages import validating_policy, vendor_keys  # noqa: PLC0415 - needs the path

    texts = {**validating_policy.files(), "vendor-keys.yaml": vendor_keys.text()}
    return {name: yaml.safe_load(text) for name, text in texts.items()}


def _chart(place: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the objects of the chart for each set of values; nothing, where helm is not there."""
    try:
        helm = find("helm")
    except Missing:
        tell("helm is not here (./dev setup --all): the chart is not recorded")
        return {}
    source = place / "chart"
    shutil.copytree(_TREE / "packaging/helm/gpushare", source)
    shutil.copytree(_TREE / "configs", source / "configs")  # templates read some of it
    found = {}
    for name, values in _VALUES.items():
        file = place / f"{name}.yaml"
        file.write_text(yaml.safe_dump(values))
        options = ["--namespace", "gpus", "--kube-version", "1.36"]
        command = [helm, "template", "gpushare", str(source), "--values", str(file), *options]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        documents = yaml.safe_load_all(text)
        found[name] = {f"{one['kind']} {one['metadata']['name']}": one for one in documents if one}
    return found


def _lines(said: dict[str, Any]) -> dict[str, Any]:
    if isinstance(said["json"], str):
        said["json"] = said["json"].splitlines()
    return said
