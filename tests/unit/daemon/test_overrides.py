# SPDX-License-Identifier: Apache-2.0
"""What is kept on disk beside the ledger: the operator's settings, measured contexts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpushare.daemon.cards.context_size import (
    ContextSizes,
    DriverFigures,
    measure_rounding,
)
from gpushare.daemon.store.overrides import Overrides, OverridesError

from .fakes import GIB, MIB, card


def test_a_setting_that_cannot_be_written_is_not_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = Overrides(tmp_path)
    overrides.set("one", {"memory": "4GiB"})

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        overrides.set("one", {"memory": "6GiB"})
    assert overrides.of("one") == {"memory": "4GiB"}
    monkeypatch.undo()
    assert Overrides(tmp_path).of("one") == {"memory": "4GiB"}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("content", ["", "{", '{"one": {"speed": "1"}}', "\0" * 64, None])
def test_damaged_settings_are_set_aside_and_the_last_good_ones_hold(
    tmp_path: Path, content: str | None
) -> None:
    first = Overrides(tmp_path)
    first.set("one", {"memory": "4GiB"})
    first.set("two", {"memory": "6GiB"})
    file = tmp_path / "overrides.json"
    whole = file.read_text()
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    found = Overrides(tmp_path)
    assert (found.of("one"), found.of("two")) == ({"memory": "4GiB"}, {"memory": "6GiB"})
    assert "the last settings of `gpushare set` remain in effect" in found.notice
    if content is not None:
        assert (tmp_path / "overrides.json.damaged-1").read_text() == content
        assert file.read_text() == whole
        assert Overrides(tmp_path).notice == ""


def test_an_operators_own_correction_is_taken_and_kept(tmp_path: Path) -> None:
    Overrides(tmp_path).set("one", {"memory": "4GiB"})
    (tmp_path / "overrides.json").write_text('{"one": {"memory": "8GiB"}}')
    assert Overrides(tmp_path).of("one") == {"memory": "8GiB"}
    (tmp_path / "overrides.json").write_text("{")
    assert Overrides(tmp_path).of("one") == {"memory": "8GiB"}


def test_the_oldest_settings_are_forgotten_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.daemon.store.overrides._MOST", 3)
    overrides = Overrides(tmp_path)
    for identity in ("a", "b", "c", "a", "d"):
        overrides.set(identity, {"memory": "1GiB"})
    assert [bool(overrides.of(identity)) for identity in "abcd"] == [True, False, True, True]


def test_a_measured_context_is_kept_by_model_and_driver_version(tmp_path: Path) -> None:
    figures = DriverFigures(500 * MIB, 256, 4096)
    ContextSizes(tmp_path, "580").keep(card(0), figures)
    assert ContextSizes(tmp_path, "580").rounding(card(1)) == (256, 4096)
    assert ContextSizes(tmp_path, "581").rounding(card(0)) == (0, 0)
    assert ContextSizes(tmp_path, "580").sizes.get(card(1).model, 0) == 500 * MIB
    assert ContextSizes(tmp_path, "580").sizes.get(card(0, model="T4").model, 0) == 0
    assert ContextSizes(tmp_path, "581").sizes.get(card(0).model, 0) == 0


def test_reported_context_sizes_count_until_one_is_measured(tmp_path: Path) -> None:
    contexts = ContextSizes(tmp_path, "580")
    for seen in (600, 500, 700):
        contexts.learn(card(), "a", seen * MIB)
    assert contexts.sizes.get(card().model, 0) == 500 * MIB
    contexts.keep(card(), DriverFigures(520 * MIB))
    contexts.learn(card(), "a", 100 * MIB)
    assert contexts.sizes.get(card().model, 0) == 520 * MIB


@pytest.mark.parametrize("lie", [1, 100 * GIB])
def test_a_false_context_count_decides_nothing(tmp_path: Path, lie: int) -> None:
    contexts = ContextSizes(tmp_path, "580")
    for _ in range(3):
        contexts.learn(card(), "liar", lie)
        lie -= 1
    for honest, seen in (("a", 520), ("b", 500)):
        contexts.learn(card(), honest, seen * MIB)
    assert 500 * MIB <= contexts.sizes.get(card().model, 0) <= 520 * MIB
    assert ContextSizes(tmp_path, "580").sizes.get(card().model, 0) == 0, "hearsay is not kept"


def test_only_the_last_tenants_have_a_vote(tmp_path: Path) -> None:
    contexts = ContextSizes(tmp_path, "580")
    for number in range(200):
        contexts.learn(card(), f"t{number}", (1000 - number) * MIB)
    assert contexts.sizes.get(card().model, 0) == (1000 - 200 + 32) * MIB


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"H200 580": "much"}', '{"H200 580": 5}', '{"H200 580": [-5, 0, 0]}']
)
def test_a_damaged_cache_is_measured_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "contexts.json").write_text(content)
    assert not ContextSizes(tmp_path, "580").is_measured(card())


@pytest.mark.parametrize(
    ("small", "large", "rounding"),
    [
        (2 * MIB, 4 * 4 * MIB, (0, 2 * MIB)),  # NVIDIA's: a block, and two blocks each
        (0, 4 * 4 * MIB, (0, 2 * MIB)),  # small buffers in a block that was there
        (64, 4 * (2 * MIB + 1), (1, 1)),  # another: as requested
        (64 * 256, 4 * (2 * MIB + 4096), (256, 4096)),
        (64 * 256 + 1, 4 * (2 * MIB + 4096) + 1, (0, 0)),  # no rounding explains it
        (-5, 0, (0, 0)),
        (64 * 1024, 4 * 8 * MIB, (0, 0)),
    ],
)
def test_the_rounding_follows_from_the_drivers_figures(
    small: int, large: int, rounding: tuple[int, int]
) -> None:
    assert measure_rounding(lambda _, count: small if count == 64 else large) == rounding


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"one": 4}', '{"one": {"policy": "fastest"}}', '{"one": {"memory": "4"}}'],
)
def test_damaged_settings_are_not_taken_for_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "overrides.json").write_text(content)
    with pytest.raises(OverridesError, match="remove it to continue without them"):
        Overrides(tmp_path)
