# SPDX-License-Identifier: Apache-2.0
"""What YAML reads otherwise than its writer meant, and files that are no configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare import config, settings
from gpushare.config import parse
from gpushare.settings import ConfigError, ConfigProblem

FILE = Path("/etc/gpushare/gpushare.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, FILE)
    told = str(caught.value).splitlines()
    assert all(line.startswith(f"{FILE}:") for line in told)
    return [line.removeprefix(f"{FILE}:") for line in told]


@pytest.mark.parametrize("word", ["yes", "on", "no", "off", "y", "1"])
def test_a_word_that_yaml_reads_as_a_boolean_is_none(word: str) -> None:
    [told] = problems(f"defaults:\n  memory: 1GiB\n  mode: {word}\n")
    shown = word if word.isdigit() else f'"{word}"'
    assert told == (
        f"3: defaults.mode: {shown} is not a valid value; write one of shared, exclusive"
    )


@pytest.mark.parametrize("number", ["010", "0x10", "1_0", "1:30", "+5", "10 s", "0o7"])
def test_a_number_in_another_notation_is_none(number: str) -> None:
    [told] = problems(f"max_tenants: {number}\n")
    assert told == (
        f'1: max_tenants: "{number}" is not a whole number; write a number from 1 to 256'
    )


@pytest.mark.parametrize("number", [".nan", ".inf", "-.inf", "nan", "1e400", "12:30"])
def test_a_time_that_is_no_finite_number_is_none(number: str) -> None:
    [told] = problems(f"timing:\n  bind_timeout_seconds: {number}\n")
    assert told.startswith(f'2: timing.bind_timeout_seconds: "{number}" is not a number')


def test_a_date_and_a_country_are_text() -> None:
    parsed = parse("read_group: no\nnamespaces:\n  no: {}\n  2026-01-01: {}\n  123: {}\n", FILE)
    assert parsed.read_group == "no"
    assert [name for name, _ in parsed.namespaces] == ["no", "2026-01-01", "123"]


def test_a_duplicate_key_is_reported_at_any_depth() -> None:
    text = "namespaces:\n  a:\n    max_per_request: {count: 1, count: 2}\n  a: {}\n"
    assert problems(text) == [
        "3: namespaces.a.max_per_request.count: is a duplicate of line 3; keep one",
        "4: namespaces.a: is a duplicate of line 2; keep one",
    ]


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{below}: &{below} [{', '.join([f'*{above}'] * 9)}]\n"
    for above, below in zip("abcdefgh", "bcdefghi", strict=True)
)


#: A text of gpushare.yaml, and a part of what is said of it.
REFUSED = r"""
audit: {over_quota: freze} => audit.over_quota: "freze" is not a valid value; write one of observe,
    warn, freeze
namespaces: {a: {audit: {unallocated: kill}}} => namespaces.a.audit.unallocated: unknown key
users: {audit: {over_quota: kill}} => users.audit: unknown key
compatibility: freeze => compatibility: "freeze" is not a valid value; write one of ignore, warn,
    ref
cards: {A100: {allowed_mode: whole}} => cards.A100.allowed_mode: "whole" is not a valid value
cards: [A100] => cards: a list is not a mapping
users: {max_per_node: {memory: 4}} => users.max_per_node.memory: 4 has no unit
max_per_node: {cards: 1} => max_per_node: unknown key
labels: [a b] => labels
labels: [team, team] => labels
prices: {gpu_hour: -1} => prices.gpu_hour
prices: {currency: <b>} => prices.currency
prices: {models: {H200: {hour: 1}}} => prices.models.H200.hour
namespaces: {team-a: {prices: {gpu_hour: 1}}} => namespaces.team-a.prices
idle: {after: 2 hours} => idle.after
idle: {after: 0s} => idle.after
users: {idle: {after: 1h}} => users.idle
max_tenants: 0 => 1: max_tenants: 0 is too small; write a number from 1 to 256
\nmax_tenant: 3 => 2: max_tenant: unknown key; did you mean max_tenants?
defaults:\n  memory: 4G => 2: defaults.memory: "4G" is ambiguous
system_reserved: 4Q => 1: system_reserved: "4Q" is not a size; write e.g. 4GiB
system_reserved: 4 => system_reserved: 4 has no unit: 4 bytes or 4 GiB; write 4GiB, or 4B for
    bytes
zzz: 4 => 1: zzz: unknown key; the keys here are run_dir
run_dir: tmp => 1: run_dir: "tmp" is not an absolute path; write e.g. /run/gpushare
max_tenants: 3\nmax_tenants: 4 => 2: max_tenants: is a duplicate
defaults:\n  policy: fair => write one of fixed-share, burst-share
a: [ => not YAML
- a => not a mapping
timing:\n  sample_interval_seconds: 0 => 2: timing.sample_interval_seconds: 0 is too
    small
driver: {cdi_spec: /x, cdi_spec: /y} => driver.cdi_spec: is a duplicate
engines:\n  sockets:\n  - relative => 3: engines.sockets[0]:
*x => 1: not YAML: anchors and aliases (&name, *name) are not taken; write the value out
namespaces:\n  *: {} => 2: not YAML: did not find expected alphabetic or numeric character
<<: {max_tenants: 1} => 1: <<: unknown key; the keys here are run_dir
a: !!python/object/apply:os.system [id] => 1: not YAML: tags (!name) are not taken
max_tenants: !!int 3 => 1: not YAML: tags (!name) are not taken
? [a]\n: 1 => 1: a key must be plain text
max_tenants: 1\n---\nmax_tenants: 2 => 2: not YAML: but found another document
max_tenants: => 1: max_tenants: nothing is not a whole number; write a number from 1
system_reserved: {} => 1: system_reserved: a mapping is not a size; write e.g. 4GiB
max_per_request: {policies: []} => 1: max_per_request.policies: a list is empty; write a list of
    fix
max_per_request: {policies: fixed-share} => "fixed-share" is not a list; write a list of fix
max_per_request: {classes: [online, online]} => max_per_request.classes: a list has duplicate
    items
max_per_request: {policies: [fixed-shar]} => did you mean fixed-share?
namespaces: {Team_A: {}} => namespaces.Team_A: is not a valid namespace name or pattern
namespaces: {a: {max_per_requst: {}}} => 1: namespaces.a.max_per_requst: unknown key; did you mean
    max_per_request
users: {trust: {env: request}} => 1: users.trust: unknown key
profiles: {a: {cores: 10}} => 1: profiles.a: sets no memory; add memory: 4GiB or equal
profiles:\n  a:\n    memory: 4GiB\n    equal: 2 => 4: profiles.a.equal: sets memory twice; keep one
    of memory and equal
profiles: {a: {equal: 1}} => 1: profiles.a.equal:
profiles: {A b: {equal: 2}} => 1: profiles.A b:
profiles: {a: {memory: 4GiB, policy: fixed-share}} => 1: profiles.a: requires cores, but none are
    requested
profiles: {a: {memory: 4GiB, memory_limit: 2GiB}} => 1: profiles.a: is below memory 4GiB
"""


@pytest.mark.parametrize("row", REFUSED.replace("\n    ", " ").strip().splitlines())
def test_what_is_wrong_is_reported_with_its_line_key_and_fix(row: str) -> None:
    text, told = row.replace(r"\n", "\n").split(" => ")
    assert any(told in line for line in problems(text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            BOMB,
            "1: not YAML: anchors and aliases (&name, *name) are not taken; write the value out",
        ),
        ("defaults:\n\tmemory: 1GiB", "2: not YAML: found character that cannot start any token; "),
        ("x: " + "[" * 5000 + "]" * 5000, "1: not YAML: nested more than 16 deep"),
        ("x: " + "{a: " * 5000, "1: not YAML: nested more than 16 deep"),
        ("\nmax_tenants: 1\0", "2: has the character U+0000; take it out"),
    ],
)
def test_a_text_that_keeps_a_reader_busy_is_refused(text: str, told: str) -> None:
    assert told in "\n".join(problems(text))


def test_a_section_with_everything_commented_out_says_nothing() -> None:
    text = "defaults:\nmax_per_request:\ntrust:\nusers:\n  max_per_card:\nnamespaces:\n  a:\n"
    assert parse(text, FILE).terms == config.Config().terms


def test_every_problem_is_reported_at_once_in_the_order_of_lines() -> None:
    text = """max_tenants: 0
system_reserved: 4G
defaults:
  policy: fair
  memroy: 1GiB
namespaces:
  team:
    max_per_request: {memory: 4Q, cores: 101}
"""
    lines = [int(told.partition(":")[0]) for told in problems(text)]
    assert lines == [1, 2, 4, 5, 8, 8]


CONTRADICTING = r"""
max_per_request:\n  memory: 8GiB\n  memory_limit: 4GiB => 3: max_per_request.memory_limit:
    "4GiB" is below the maximum of memory, "8GiB"; write 8
defaults:\n  mode: shared => 2: defaults.mode: shared mode requires a default memory; add memory:
    4GiB
max_per_request: {policies: [best-effort]}\nnamespaces:\n  a: {defaults: {policy: burst-share}} =>
    3: namespaces.a.defaults.policy: "burst-share" is not among max_per_request.policies
"""


@pytest.mark.parametrize("row", CONTRADICTING.replace("\n    ", " ").strip().splitlines())
def test_contradicting_keys_are_reported_once(row: str) -> None:
    text, told = row.replace(r"\n", "\n").split(" => ")
    [line] = problems(text + ("" if "namespaces" in text else "\nnamespaces: {b: {}, c: {}}\n"))
    assert line.startswith(told)


def test_a_large_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    large = tmp_path / "gpushare.yaml"
    large.write_bytes(b"# " + b"x" * (1 << 20))
    with pytest.raises(ConfigError, match="larger than 256 KiB"):
        config.load(large)


def test_bytes_that_are_no_text_are_reported_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "gpushare.yaml"
    file.write_bytes(b"max_tenants: 2\nread_group: \xff\n")
    with pytest.raises(ConfigError, match=f"{file}:2: not UTF-8 text"):
        config.load(file)
    file.write_bytes(b"\xef\xbb\xbfmax_tenants: 2\n")  # as some editors begin a file
    assert config.load(file).max_tenants == 2


def test_a_folder_in_place_of_the_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory; name another file"):
        config.load(tmp_path)


def problems_of(text: str) -> tuple[ConfigProblem, ...]:
    """Return what is wrong with `text`; nothing where it is taken."""
    try:
        parse(text, FILE)
    except ConfigError as error:
        return error.problems
    return ()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = st.sampled_from([*settings.load_schema()["properties"], "x"])


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_values_are_accepted_or_reported_with_a_line(document: dict[str, object]) -> None:
    found = problems_of(yaml.safe_dump(document))
    assert all(problem.line > 0 for problem in found)


@given(st.text(alphabet=st.sampled_from("ab:-[]{}#&*!|>'\"%@`,? \n\t0"), max_size=40))
def test_any_text_is_accepted_or_reported(text: str) -> None:
    assert all(str(problem) for problem in problems_of(text))
