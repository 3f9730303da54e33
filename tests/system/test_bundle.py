# SPDX-License-Identifier: Apache-2.0
"""`gpushare doctor --bundle` of a real gpushared, with a container, and after it was killed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from gpushare.cli.bundle import FOLDER
from tests.stack import Stack
from tests.stack.bundle import Bundle


def report(stack: Stack, file: Path, *options: str) -> dict[str, str]:
    """Return the parts of a new report by their names."""
    stack.gpushare("doctor", "--bundle", str(file), *options)
    assert file.stat().st_mode & 0o777 == 0o600
    found = {}
    with tarfile.open(file) as archive:
        for entry in archive:
            part = archive.extractfile(entry)
            assert part is not None
            found[entry.name.removeprefix(f"{FOLDER}/")] = part.read().decode()
    return found


def test_a_report_has_the_container_its_events_and_the_log(own: Stack, tmp_path: Path) -> None:
    bundle = Bundle(own, quota={"memory": "4GiB"})
    with bundle.started():
        plain = report(own, tmp_path / "plain.tar.gz")
        redacted = report(own, tmp_path / "redacted.tar.gz", "--redact")
    [row] = json.loads(plain["ps.json"])
    assert row["id"] == bundle.id
    assert f"{own.root}" in plain["gpushare.yaml"]
    assert json.loads(plain["ls.json"])
    events = {event["event"] for event in json.loads(plain["history.json"])}
    assert {"tenant-reserved", "tenant-bound"} <= events
    logged = [json.loads(line)["event"] for line in plain["gpushared.log"].splitlines()]
    assert "daemon-ready" in logged
    assert "tenant-bound" in logged
    assert [name for name, text in redacted.items() if bundle.id in text] == []
    assert json.loads(redacted["ps.json"])[0]["id"].startswith("container-")

    own.end_daemon()
    without = report(own, tmp_path / "without.tar.gz")
    assert "ps.json" not in without
    assert (
        "status.json, ls.json, ps.json, history.json: gpushared is not running"
        in (without["README.txt"])
    )
    assert "fail" in without["doctor.json"]
