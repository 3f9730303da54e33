# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from .driver import Driver

CONTAINERD = ["--root", "/run/x", "--log", "/l.json", "--log-format", "json"]


def parse(driver: Driver, line: str) -> dict[str, object]:
    return driver.args("gpushare-runtime", *line.split(" ")) if line else driver.args("x")


def test_the_call_of_containerd_is_read(driver: Driver) -> None:
    words = [*CONTAINERD, "create", "--bundle", "/b", "--pid-file", "/p", "ID"]
    assert driver.args("gpushare-runtime", *words) == {
        "verb": "create",
        "creates": True,
        "checkpoints": False,
        "id": "ID",
        "bundle": "/b",
        "log": "/l.json",
        "format": "json",
        "unknown": None,
        "config": "config.json",
    }


@pytest.mark.parametrize(
    "line",
    [
        "exec ID create",
        "frobnicate create ID",
        "--new-flag value state ID",
        "--help",
        "-h create ID",
        "create --help ID",
        "--root create state ID",
        "-root=/x state create",
        "-- state create",
        "",
    ],
)
def test_commands_that_create_no_container_are_passed_on(driver: Driver, line: str) -> None:
    assert not parse(driver, line)["creates"]


@pytest.mark.parametrize(
    "flags",
    ["--bundle /b", "--bundle=/b", "-bundle /b", "-bundle=/b", "-b /b", "-b=/b", "-b /a -b /b"],
)
def test_the_bundle_is_read_in_every_form(driver: Driver, flags: str) -> None:
    assert parse(driver, f"create {flags} ID")["bundle"] == "/b"
    assert parse(driver, f"create ID {flags}")["bundle"] == "/b"
    assert parse(driver, f"create ID {flags}")["id"] == "ID"


@pytest.mark.parametrize("flags", ["-b/b", "--bund /b", "--bundl=/b", "--b=/b", "-db/b", "-db /b"])
def test_the_bundle_is_read_in_the_forms_of_crun(driver: Driver, flags: str) -> None:
    """argp: a value glued to its letter, letters together, long names as far as they are unique."""
    for line in (f"run {flags} ID", f"run ID {flags}"):
        parsed = parse(driver, line)
        assert (parsed["bundle"], parsed["id"], parsed["unknown"]) == ("/b", "ID", None)


@pytest.mark.parametrize("line", ["--log-f json create -b/b ID", "--deb create -b/b ID"])
def test_global_flags_may_be_cut_short(driver: Driver, line: str) -> None:
    parsed = parse(driver, line)
    assert (parsed["verb"], parsed["bundle"], parsed["unknown"]) == ("create", "/b", None)


@pytest.mark.parametrize("flags", ["--p /x", "-z", "-zb/b", "--", "--=x"])
def test_an_ambiguous_flag_is_unknown(driver: Driver, flags: str) -> None:
    parsed = parse(driver, f"create {flags} ID")
    assert (parsed["unknown"] is None) == (flags == "--")
    assert parsed["bundle"] == "."


@pytest.mark.parametrize("flags", ["--config /c", "--config=/c", "-f /c", "-f/c", "--conf /c"])
def test_another_spec_of_the_bundle_is_looked_at_and_no_known_thing(
    driver: Driver, flags: str
) -> None:
    parsed = parse(driver, f"create {flags} -b /b ID")
    assert (parsed["config"], parsed["bundle"], parsed["id"]) == ("/c", "/b", "ID")
    assert parsed["unknown"] in flags.split(" ")


@pytest.mark.parametrize("line", ["create ID", "create --bundle= ID", "create ID --bundle"])
def test_the_bundle_defaults_to_the_working_directory(driver: Driver, line: str) -> None:
    assert parse(driver, line)["bundle"] == "."


def test_after_two_dashes_nothing_is_a_flag(driver: Driver) -> None:
    parsed = parse(driver, "create -b /b -- -b")
    assert (parsed["id"], parsed["bundle"]) == ("-b", "/b")


def test_an_unknown_global_flag_is_noted_and_a_later_create_found(driver: Driver) -> None:
    parsed = parse(driver, "--new-flag value create --bundle /b ID")
    assert parsed["unknown"] == "--new-flag"
    assert (parsed["creates"], parsed["bundle"], parsed["id"]) == (True, "/b", "ID")


@pytest.mark.parametrize(
    "line",
    [
        "checkpoint ID",
        "--root /run/x checkpoint --image-path /i --leave-running ID",
        "checkpoint ID --work-path=/w --tcp-established",
        "checkpoint --parent-path create -- ID",
    ],
)
def test_a_checkpoint_is_requested_by_its_id(driver: Driver, line: str) -> None:
    found = parse(driver, line)
    assert (found["checkpoints"], found["creates"], found["id"]) == (True, False, "ID")


@pytest.mark.parametrize("line", ["checkpoint --help ID", "exec ID checkpoint", "checkpoints ID"])
def test_other_commands_are_no_checkpoint(driver: Driver, line: str) -> None:
    assert not parse(driver, line)["checkpoints"]
