# SPDX-License-Identifier: Apache-2.0
"""The rules of compatibility, the tables under them, and NVIDIA_REQUIRE_ variables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushare import compatibility
from gpushare.compatibility import RULES, evaluate_image, holds, parse_expression, rules
from gpushare.compatibility.rules import (
    CardFacts,
    CompatibilityFinding,
    Image,
    Machine,
    Runtime,
    Version,
    newest_cuda,
    parse_version,
    strip_zeros,
    worst,
)
from libhook.table import headers

H200 = CardFacts("H200", (9,), "nvidia", datacenter=True)


V100 = CardFacts("V100", (7,), "tesla", datacenter=True)


GEFORCE = CardFacts("RTX 4090", (8, 9), "geforce", datacenter=False)


WHERE = "/usr/local/cuda/lib64/libcudart.so"


def image(version: Version = (), **changes: object) -> Image:
    runtimes = (Runtime(version, WHERE),) if version else ()
    return replace(Image(runtimes), **changes)  # type: ignore[arg-type]


def machine(driver: str, *cards: CardFacts, **changes: object) -> Machine:
    version = tuple(int(part) for part in driver.split("."))
    made = Machine(version, newest_cuda(version), cards or (H200,))
    return replace(made, **changes)  # type: ignore[arg-type]


def ill(found: tuple[CompatibilityFinding, ...]) -> list[tuple[str, str]]:
    return [(one.level, one.rule) for one in found if one.level != "ok"]


@pytest.mark.parametrize(
    ("driver", "runtime", "expected"),
    [
        # Its own CUDA, or an older one.
        ("580.65.06", (13, 0, 96), "driver"),
        ("450.80.02", (10, 2, 89), "driver"),
        # More than one major version behind.
        ("580.65.06", (11, 8, 89), "majors-apart"),
        # Newer, of the same major version.
        ("580.65.06", (13, 3, 29), "minor-version"),
        ("450.80.02", (11, 8, 89), "minor-version"),
        # Newer, and not for this driver.
        ("575.51.03", (13, 0, 96), "driver-too-old"),
        ("525.60.02", (12, 4, 127), "driver-too-old"),
    ],
)
def test_a_driver_runs_a_runtime_or_not(driver: str, runtime: Version, expected: str) -> None:
    # Cards of their own are another rule's.
    found = evaluate_image(image(runtime), machine(driver, CardFacts()))
    assert next(one.rule for one in found if one.rule in RULES) == expected
    levels = {"driver": "ok", "driver-too-old": "refuse"}
    assert worst(found) == levels.get(expected, "warn")


@pytest.mark.parametrize(
    ("card", "expected"),
    [(H200, []), (GEFORCE, [("refuse", "driver-too-old"), ("warn", "cuda-compat")])],
)
def test_a_newer_libcuda_of_the_image_helps_on_cards_of_data_centres(
    card: CardFacts, expected: list[tuple[str, str]]
) -> None:
    newer = image((13, 0, 96), compat=(580, 65, 6))
    assert ill(evaluate_image(newer, machine("550.54.15", card))) == expected
    # An older one is not used, and nothing to speak of.
    older = image((12, 4, 127), compat=(535, 54, 3))
    assert not ill(evaluate_image(older, machine("550.54.15", card)))


def test_the_requirement_reads_the_libcuda_that_the_container_gets() -> None:
    wants = image(compat=(580, 65, 6), requires=(("NVIDIA_REQUIRE_CUDA", "cuda>=13.0"),))
    assert not ill(evaluate_image(wants, machine("550.54.15", H200)))
    assert ("refuse", "require") in ill(evaluate_image(wants, machine("550.54.15", GEFORCE)))


def test_an_unmet_requirement_is_reported_with_the_present_version() -> None:
    text = "cuda>=12.8 brand=tesla,driver>=535,driver<536"
    wants = image(requires=(("NVIDIA_REQUIRE_CUDA", text),))
    [found, _] = evaluate_image(wants, machine("550.54.15"))
    assert (found.level, found.rule) == ("refuse", "require")
    assert found.what == (
        "NVIDIA_REQUIRE_CUDA requires cuda>=12.8 (or 1 alternatives), which is not met on H200: "
        "this machine has cuda 12.4, driver 550.54.15, brand nvidia, arch 9.0"
    )
    assert "NVIDIA_DISABLE_REQUIRE=1" in found.fix
    assert not ill(evaluate_image(replace(wants, disabled=True), machine("550.54.15")))


def test_a_requirement_has_to_hold_on_every_card() -> None:
    wants = image(requires=(("NVIDIA_REQUIRE_ARCH", "arch>=8.0"),))
    assert not ill(evaluate_image(wants, machine("550.54.15", H200, H200)))
    [found, _] = evaluate_image(wants, machine("550.54.15", H200, V100))
    assert (found.level, "on V100" in found.what) == ("refuse", True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("vram>=16", 'cannot be evaluated: "vram>=16": unknown property vram'),
        ("brand=tesla,cuda>=12", "cannot be evaluated: brand is unknown on this machine"),
        ("a\nb>=1", r'"a": is not PROPERTY'),
        ("cuda", "is not PROPERTY, an operator and a value"),
        (">=12.4", "is not PROPERTY"),
        ("cuda=>12.4", "is not PROPERTY"),
        ("cuda>=12.x", "12.x is not a version"),
        ("brand>=tesla", "brand is a name"),
        ("x" * 9000, "is over 8192 characters"),
    ],
)
def test_a_requirement_that_cannot_be_judged_is_a_warning(text: str, told: str) -> None:
    wants = image(requires=(("NVIDIA_REQUIRE_X", text),))
    [found, *_] = evaluate_image(wants, machine("550.54.15", CardFacts("H200", (9,))))
    assert (found.level, found.rule) == ("warn", "require-undecided")
    assert told in found.what
    assert found.what.isprintable()


@pytest.mark.parametrize(
    ("runtime", "capability", "expected"),
    [
        ((13, 0, 96), (7,), ("refuse", "card-dropped")),
        ((12, 9, 79), (7,), None),
        ((12, 0, 107), (3, 5), ("refuse", "card-dropped")),
        ((10, 2, 89), (8,), ("warn", "card-too-new")),
        ((12, 8, 57), (12,), None),
        ((13, 0, 96), (99,), None),  # one that the table does not know is not judged
    ],
)
def test_a_toolkit_makes_programs_for_a_card_or_not(
    runtime: Version, capability: Version, expected: tuple[str, str] | None
) -> None:
    own = strip_zeros(runtime[:2])
    here = Machine((), own, (CardFacts("the card", capability),))
    rules = [
        found for found in ill(evaluate_image(image(runtime), here)) if found[1].startswith("card-")
    ]
    assert rules == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("name", "capability", "told"),
    [
        ("bfloat16", (7,), True),
        ("bfloat16", (8,), False),
        ("fp8", (8, 6), True),
        ("fp8", (8, 9), False),
        ("fp4", (9,), True),
        ("fp4", (12,), False),
    ],
)
def test_code_that_a_card_cannot_run_is_reported(
    name: str, capability: Version, told: bool
) -> None:
    wants = image(precisions=((name, f"--dtype={name}"),))
    found = evaluate_image(wants, Machine(cards=(CardFacts("V100", capability),)))
    assert ill(found) == ([("warn", "precision")] if told else [])


@pytest.mark.parametrize(
    ("runtime", "cuda", "backend", "told"),
    [
        ((13, 6, 1), (13, 6), "interposer", True),
        ((13, 6, 1), (13, 6), "exclusive", False),  # a whole card has none
        ((13, 5, 37), (14,), "interposer", True),
        ((13, 5, 37), (13, 9), "interposer", False),
        ((12, 4, 127), (13,), "interposer", False),
    ],
)
def test_a_version_newer_than_the_interposer_is_reported(
    runtime: Version, cuda: Version, backend: str, told: bool
) -> None:
    here = replace(Machine((), cuda, (H200,)), backend=backend)  # type: ignore[arg-type]
    found = ill(evaluate_image(image(runtime), here))
    assert found == ([("warn", "interposer-baseline")] if told else [])


def test_other_runtimes_are_never_refused() -> None:
    both = Image((Runtime((12, 4, 127), WHERE), Runtime((13, 0, 96), "/opt/venv/libcudart.so.13")))
    found = evaluate_image(both, machine("550.54.15"))
    assert ill(found) == [("warn", "driver-too-old")]
    assert found[0].what.startswith("in addition to the first runtime: CUDA 13.0")
    beside = Image((Runtime((12, 4, 127), WHERE), Runtime((12, 1, 105), "/opt/venv/libcudart.so")))
    assert [one.rule for one in evaluate_image(beside, machine("550.54.15"))] == [
        "driver",
        "other-runtime",
    ]


def test_the_baseline_is_the_source_of_the_interposers_table() -> None:
    releases = [parse_version(name) for name in headers.RELEASES]
    assert (releases[0], releases[-1]) == (rules.BASELINE_OLDEST, rules.BASELINE_NEWEST)


def test_the_oldest_driver_of_a_major_version_is_none_that_came_later_than_its_first_toolkit() -> (
    None
):
    for major, least in rules.MINOR_COMPATIBLE.items():
        after = min(own for cuda, own in rules.TOOLKITS.items() if cuda > (major, 1))
        assert rules.TOOLKITS[major,] <= least < after


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
        ("cuda=12.4.0", True),
        ("cuda!=12.4", False),
        ("cuda<12.10", True),  # a version, no decimal number
        ("driver>=v550.54", True),
        ("brand=NVIDIA", True),
        ("brand!=tesla", True),
        ("arch<8", False),
        ("Cuda>=12", True),
        # A comma is and, a blank is or.
        ("cuda>=12.4,brand=tesla", False),
        ("cuda>=12.5 brand=nvidia,driver>=550,driver<551", True),
        ("cuda>=12.5 , arch=8.0", True),
        ("", True),
    ],
)
def test_an_expression_holds_or_not(text: str, expected: bool) -> None:
    assert holds(parse_expression(text), HERE) is expected


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
