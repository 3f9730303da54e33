# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_REQUIRE_ variables: what they mean, and what becomes of what they do not."""

from __future__ import annotations

import pytest

from gpushare import compatibility
from gpushare.compatibility import holds, parse_expression

HERE: compatibility.Facts = {
    "cuda": (12, 4),
    "driver": (550, 54, 15),
    "brand": "nvidia",
    "arch": (8,),
}
NOWHERE: compatibility.Facts = {"cuda": None, "driver": None, "brand": None, "arch": None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda>=12.4", True),
        ("cuda>=12.5", False),
        ("cuda>12.4", False),
        ("cuda<=12.4", True),
        ("cuda=12.4.0", True),
        ("cuda!=12.4", False),
        ("cuda<12.10", True),  # a version, no decimal number
        ("driver>=550", True),
        ("driver<551", True),
        ("driver<550.54.15", False),
        ("driver>=v550.54", True),
        ("brand=nvidia", True),
        ("brand=NVIDIA", True),
        ("brand!=tesla", True),
        ("arch>=8.0", True),
        ("arch<8", False),
        ("Cuda>=12", True),
        # A comma is and, a blank is or.
        ("cuda>=12.4,brand=tesla", False),
        ("cuda>=12.5 brand=nvidia,driver>=550,driver<551", True),
        ("cuda>=12.5  brand=tesla,driver>=550", False),
        ("cuda>=12.5 , arch=8.0", True),
        ("", True),
    ],
)
def test_an_expression_holds_or_not(text: str, expected: bool) -> None:
    assert holds(parse_expression(text), HERE) is expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cuda", "is not PROPERTY, an operator and a value"),
        ("cuda>=", "is not PROPERTY"),
        (">=12.4", "is not PROPERTY"),
        ("cuda=>12.4", "is not PROPERTY"),
        ("cuda>=12.x", "12.x is not a version"),
        ("brand>=tesla", "brand is a name"),
        ("vram>=16", "unknown property vram"),
        ("x" * 9000, "is over 8192 characters"),
    ],
)
def test_a_malformed_requirement_decides_nothing(text: str, told: str) -> None:
    expression = parse_expression(text)
    assert told in expression[0][0].problem
    assert holds(expression, HERE) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # What is not known matters only where the rest leaves it open.
        ("brand=tesla cuda>=12.4", True),
        ("brand=tesla,cuda>=12.5", False),
        ("brand=tesla,cuda>=12.4", None),
        ("brand=tesla cuda>=12.5", None),
    ],
)
def test_an_unknown_requirement_is_left_open(text: str, expected: bool | None) -> None:
    assert holds(parse_expression(text), {**HERE, "brand": None}) is expected
    assert holds(parse_expression("cuda>=1"), NOWHERE) is None


def test_every_variable_of_the_prefix_is_one_but_for_jetpacks() -> None:
    env = {
        "NVIDIA_REQUIRE_CUDA": "cuda>=12.4",
        "NVIDIA_REQUIRE_DRIVER": "driver>=550",
        "NVIDIA_REQUIRE_JETPACK": "csv-mounts=all",
        "NVIDIA_REQUIRE_EMPTY": " ",
        "NVIDIA_VISIBLE_DEVICES": "all",
    }
    assert compatibility.find_requirements(env) == (
        ("NVIDIA_REQUIRE_CUDA", "cuda>=12.4"),
        ("NVIDIA_REQUIRE_DRIVER", "driver>=550"),
    )


def test_of_requirements_without_end_no_more_is_kept_than_is_read() -> None:
    env = {f"NVIDIA_REQUIRE_{number}": "x" * (1 << 20) for number in range(64)}
    kept = compatibility.find_requirements(env)
    assert len(kept) == 16
    assert sum(len(text) for _, text in kept) < 1 << 18
    assert parse_expression(kept[0][1])[0][0].problem == "is over 8192 characters"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", True),
        ("true", True),
        ("True", True),
        ("T", True),
        ("0", False),
        ("false", False),
        ("yes", False),
        ("tRue", False),
        ("", False),
    ],
)
def test_values_that_go_reads_as_true_switch_them_off(text: str, expected: bool) -> None:
    assert compatibility.is_disabled({"NVIDIA_DISABLE_REQUIRE": text}) is expected
    assert not compatibility.is_disabled({})
