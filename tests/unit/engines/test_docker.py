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


def test_an_upgrade_replaces_the_path_alone() -> None:
    before = DOCKER.register('{"x-unknown": 1.50}', LAUNCHER, default=True)
    other = Path("/opt/other/gpushare-runtime")
    after = DOCKER.register(before, other, default=False)
    assert after == before.replace(str(LAUNCHER), str(other))
    assert DOCKER.registered(after) == other


def test_taking_it_out_without_the_earlier_file_has_no_default() -> None:
    after = DOCKER.register("", LAUNCHER, default=True)
    assert '"default-runtime": "gpushare"' in after
    assert '"default-runtime"' not in DOCKER.unregister(after, "")


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
