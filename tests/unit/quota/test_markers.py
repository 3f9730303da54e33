# SPDX-License-Identifier: Apache-2.0
"""The launcher's markers and the quotas know the same names: what asks must reach the daemon."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from gpushare.quota.dialects import DIALECTS
from gpushare.quota.dialects.vendor_key import VendorKey
from gpushare.quota.keys import KEYS, is_quota
from gpushare.quota.request import VISIBLE_DEVICES

MARKERS = Path(__file__).parents[3] / "runtime/markers.inc"
#: Rows of other systems that a runtime may see.
ROWS = [
    pytest.param(row, id=f"{name}: {row.name}")
    for name, dialect in DIALECTS.items()
    for row in dialect.rows
    if row.is_visible
]


PLACES = {"{card}": "1", "{container}": "main", "{model}": "a10_24g", "{any}": "CUDA"}


LINE = re.compile(r'^MARKER\((\w+), (\w+), "([^"]*)", (\w+)\)', re.MULTILINE)

# What docs/reference says is read and asks for nothing; that page is checked against the code.
ENVIRONMENT = Path(__file__).parents[3] / "docs/reference/environment.md"


DESCRIBED = re.findall(r"^\| `(GPUSHARE_\w+)`", ENVIRONMENT.read_text(), re.MULTILINE)


def fits(shape: str, text: str, name: str) -> bool:
    """Whether a line of the table is for `name`."""
    return {
        "NAME": name == text,
        "PREFIX": name.startswith(text),
        "BASENAME": name.rpartition("/")[2].startswith(text),
        "GLOB": fnmatchcase(name, text),
    }[shape]


def strength(source: str, name: str) -> str | None:
    """Return what the launcher takes `name` for: the first line that fits decides."""
    return next(
        (
            str(found)
            for where, shape, text, found in LINE.findall(MARKERS.read_text())
            if where == source and fits(shape, text, name)
        ),
        None,
    )


@pytest.mark.parametrize("name", KEYS)
def test_every_canonical_key_is_a_strong_marker(name: str) -> None:
    assert strength("ANNOTATION", KEYS[name].annotation) == "STRONG"
    assert strength("ENV", KEYS[name].env) == "STRONG"
    assert strength("ANNOTATION", f"gpushare.io/container.train.{name}") == "STRONG"


@pytest.mark.parametrize(
    "name",
    [
        "GPUSHARE_SERVICE_HOST",
        "GPUSHARE_SERVICE_PORT_HTTP",
        "GPUSHARE_PORT",
        "GPUSHARE_PORT_80_TCP",
        "GPUSHARE_MEMORY",
        "GPUSHARE_PORTION",
    ],
)
def test_the_launcher_and_the_daemon_agree_on_the_markers_of_a_request(name: str) -> None:
    assert (strength("ENV", name) == "STRONG") == is_quota(name)


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_variable_that_is_described_as_no_quota_refuses_no_container(name: str) -> None:
    assert strength("ENV", name) == "NONE"
    assert not is_quota(name)


def test_a_variable_nearly_called_so_is_still_refused() -> None:
    for name in DESCRIBED:
        assert strength("ENV", f"{name}S") == "STRONG"
        assert is_quota(f"{name}S")


def test_an_images_visible_devices_is_a_weak_marker() -> None:
    assert strength("ENV", VISIBLE_DEVICES) == "WEAK"


def written(row: VendorKey) -> str:
    """Return a key that `row` is for."""
    name = row.name
    for place, text in PLACES.items():
        name = name.replace(place, text)
    return name


@pytest.mark.parametrize("row", ROWS)
def test_a_request_of_another_system_is_a_strong_marker_and_nothing_else_is(
    row: VendorKey,
) -> None:
    found = strength({"env": "ENV", "annotation": "ANNOTATION"}[row.where], written(row))
    assert (found == "STRONG") == (row.role == "request")


def test_every_other_strong_marker_is_a_request_key_of_a_table() -> None:
    """Where the tables know of unknown key the daemon would give nothing for it."""
    asking = {
        ({"env": "ENV", "annotation": "ANNOTATION"}[row.where], written(row))
        for dialect in DIALECTS.values()
        for row in dialect.rows
        if row.is_visible and row.role == "request"
    }
    theirs = [
        (where, shape, text)
        for where, shape, text, found in LINE.findall(MARKERS.read_text())
        if found == "STRONG" and where in {"ENV", "ANNOTATION"}
        if not text.startswith(("GPUSHARE_", "gpushare.io/"))
    ]
    assert theirs
    for where, shape, text in theirs:
        assert any(fits(shape, text, name) for place, name in asking if place == where), text
