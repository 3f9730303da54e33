# SPDX-License-Identifier: Apache-2.0
"""daemon.json: the change goes in, every other byte stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpushare.engines import docker_config
from gpushare.engines.config_files import BadConfiguration
from gpushare.engines.docker_config import DaemonJson

LAUNCHER = Path("/usr/local/lib/gpushare/current/bin/gpushare-runtime")

DOCKER = DaemonJson()

BEFORE = """\
{
  "log-opts": {"max-size": "10m"},
  "x-unknown": 1.50,
  "runtimes": {
    "nvidia": {"path": "nvidia-container-runtime", "args": []}
  },
  "default-runtime": "nvidia"
}
"""

AFTER = """\
{
  "log-opts": {"max-size": "10m"},
  "x-unknown": 1.50,
  "runtimes": {
    "nvidia": {"path": "nvidia-container-runtime", "args": []},
    "gpushare": {
      "path": "/usr/local/lib/gpushare/current/bin/gpushare-runtime"
    }
  },
  "default-runtime": "gpushare"
}
"""


def test_unknown_keys_stay_as_written() -> None:
    assert DOCKER.register(BEFORE, LAUNCHER, default=True) == AFTER


def test_an_upgrade_replaces_the_path_alone() -> None:
    other = Path("/opt/other/gpushare-runtime")
    assert DOCKER.register(AFTER, other, default=False) == AFTER.replace(str(LAUNCHER), str(other))
    assert DOCKER.registered(DOCKER.register(AFTER, other, default=False)) == other


def test_taking_it_out_leaves_later_edits_and_the_earlier_default() -> None:
    edited = AFTER.replace('"10m"', '"20m"')
    assert DOCKER.unregister(edited, BEFORE) == BEFORE.replace('"10m"', '"20m"')


def test_taking_it_out_without_the_earlier_file_has_no_default() -> None:
    assert '"default-runtime"' not in DOCKER.unregister(AFTER, "")


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('{\n  "debug": true,\n}', 3, "property name"),
        ('{\n  "debug": true\n  "x": 1\n}', 3, "delimiter"),
        ("[]", 1, "not a JSON object"),
        ('{"runtimes": []}', 0, "not an object"),
        ('{"a": 1, "a": 2}', 0, "duplicate key"),
    ],
)
def test_a_broken_file_is_refused(text: str, line: int, what: str) -> None:
    with pytest.raises(BadConfiguration, match=what) as caught:
        DOCKER.register(text, LAUNCHER, default=False)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("before", "after", "forgotten"),
    [
        ({"runtimes": {"gpushare": {}}}, {}, False),
        ({"runtimes": {"gpushare": {}, "x": {}}}, {"runtimes": {"x": {}}}, True),
        (
            {"runtimes": {"gpushare": {}, "x": {}}, "default-runtime": "gpushare"},
            {"runtimes": {"x": {}}},
            False,
        ),
        (
            {"runtimes": {"gpushare": {}, "x": {}}, "default-runtime": "gpushare"},
            {"runtimes": {"x": {}}, "default-runtime": "x"},
            True,
        ),
    ],
)
def test_a_reload_discards_only_warnings_that_come_again(
    before: dict[str, Any], after: dict[str, Any], forgotten: bool
) -> None:
    assert docker_config.is_removed_by_reload(json.dumps(before), json.dumps(after)) is forgotten
