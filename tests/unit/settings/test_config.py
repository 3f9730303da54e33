# SPDX-License-Identifier: Apache-2.0
"""gpushare.yaml: what it may say, what YAML reads otherwise, and the line that sets each value."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare import config, settings
from gpushare.config import Config, parse
from gpushare.oci.request import parse_spec_request
from gpushare.prices import Rate
from gpushare.quota.keys import exact_duration, parse_duration
from gpushare.quota.request import QuotaRequest, to_record
from gpushare.quota.request_policy import (
    Dialects,
    IdlePolicy,
    RequestPolicy,
)
from gpushare.settings import ConfigError

FILE = Path("/etc/gpushare/gpushare.yaml")


def test_the_shipped_file_is_the_defaults() -> None:
    shipped = Path(__file__).parents[3] / "configs" / "gpushare.yaml"
    assert parse(shipped.read_text(), FILE) == Config(file=FILE)


def test_the_shipped_file_shows_every_key_with_a_value_that_is_accepted() -> None:
    shipped = Path(__file__).parents[3] / "configs" / "gpushare.yaml"
    told = "\n".join(
        re.findall(r'^# ( *(?:[a-z_-]+|"[^"]+"):.*)$', shipped.read_text(), re.MULTILINE)
    )
    parsed = parse(told, FILE)
    assert parsed.terms.defaults.memory_bytes == 4 << 30
    assert parsed.terms_of("team-a").max_per_request.memory_bytes == 80 << 30
    assert parsed.terms_of("dev-x").trust == "ignore"
    whole = settings.load_schema()
    parts = (
        "defaults",
        "max_per_request",
        "max_per_card",
        "max_per_node",
        "card",
        "dialects",
        "profile",
    )
    for part in (whole, *(whole["$defs"][name] for name in (*parts, "profile"))):
        for key in part["properties"]:
            assert re.search(rf"\b{key}:", told), key


def test_a_file_changed_after_it_was_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gpushare.yaml"
    monkeypatch.setattr(config, "DEFAULT_FILE", file)
    without = config.load()
    assert not config.outdated(without)
    file.write_text("max_tenants: 4\n")
    os.utime(file, ns=(1, 1))
    assert config.outdated(without)
    said = config.load()
    assert not config.outdated(said)
    os.utime(file, ns=(2, 2))
    assert config.outdated(said)
    file.unlink()
    assert config.outdated(said)
    assert not config.outdated(Config())


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, FILE)
    told = str(caught.value).splitlines()
    assert all(line.startswith(f"{FILE}:") for line in told)
    return [line.removeprefix(f"{FILE}:") for line in told]


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{below}: &{below} [{', '.join([f'*{above}'] * 9)}]\n"
    for above, below in zip("abcdefgh", "bcdefghi", strict=True)
)


#: A text of gpushare.yaml, and a part of what is said of it.
REFUSED = r"""
audit: {over_quota: freze} => audit.over_quota: "freze" is not a valid value; write one of observe,
    warn, freeze
users: {audit: {over_quota: kill}} => users.audit: unknown key
compatibility: freeze => compatibility: "freeze" is not a valid value; write one of ignore, warn,
    ref
cards: {A100: {allowed_mode: whole}} => cards.A100.allowed_mode: "whole" is not a valid value
cards: [A100] => cards: a list is not a mapping
users: {max_per_node: {memory: 4}} => users.max_per_node.memory: 4 has no unit
max_per_node: {cards: 1} => max_per_node: unknown key
labels: [team, team] => labels
prices: {gpu_hour: -1} => prices.gpu_hour
prices: {models: {H200: {hour: 1}}} => prices.models.H200.hour
namespaces: {team-a: {prices: {gpu_hour: 1}}} => namespaces.team-a.prices
idle: {after: 2 hours} => idle.after
users: {idle: {after: 1h}} => users.idle
defaults:\n  memory: 1GiB\n  mode: yes => 3: defaults.mode: "yes" is not a valid value
max_tenants: 010 => 1: max_tenants: "010" is not a whole number; write a number from 1 to 256
max_tenants: 0 => 1: max_tenants: 0 is too small; write a number from 1 to 256
\nmax_tenant: 3 => 2: max_tenant: unknown key; did you mean max_tenants?
system_reserved: 4Q => 1: system_reserved: "4Q" is not a size; write e.g. 4GiB
system_reserved: 4 => system_reserved: 4 has no unit: 4 bytes or 4 GiB; write 4GiB, or 4B for
    bytes
zzz: 4 => 1: zzz: unknown key; the keys here are run_dir
run_dir: tmp => 1: run_dir: "tmp" is not an absolute path; write e.g. /run/gpushare
max_tenants: 3\nmax_tenants: 4 => 2: max_tenants: is a duplicate
a: [ => not YAML
- a => not a mapping
timing:\n  sample_interval_seconds: 0 => 2: timing.sample_interval_seconds: 0 is too
    small
namespaces: {a: {max_per_request: {count: 1, count: 2}}} => a.max_per_request.count: is a duplicate
engines:\n  sockets:\n  - relative => 3: engines.sockets[0]:
*x => 1: not YAML: anchors and aliases (&name, *name) are not taken; write the value out
namespaces:\n  *: {} => 2: not YAML: did not find expected alphabetic or numeric character
<<: {max_tenants: 1} => 1: <<: unknown key; the keys here are run_dir
a: !!python/object/apply:os.system [id] => 1: not YAML: tags (!name) are not taken
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
users: {trust: {env: request}} => 1: users.trust: unknown key
profiles: {a: {cores: 10}} => 1: profiles.a: sets no memory; add memory: 4GiB or equal
profiles:\n  a:\n    memory: 4GiB\n    equal: 2 => 4: profiles.a.equal: sets memory twice; keep one
    of memory and equal
profiles: {a: {equal: 1}} => 1: profiles.a.equal:
profiles: {A b: {equal: 2}} => 1: profiles.A b:
profiles: {a: {memory: 4GiB, policy: fixed-share}} => 1: profiles.a: requires cores, but none are
    requested
profiles: {a: {memory: 4GiB, memory_limit: 2GiB}} => 1: profiles.a: is below memory 4GiB
remote: {servers: {lab: {address: "a:1", engine: e}}} => 1: remote.servers.lab.engine: "e" is no
    engine of remote.engines; they are none yet
remote: {servers: {Lab: {address: "a:1"}}} => 1: remote.servers.Lab: is not a valid name; write
remote: {engines: {e: {libraries: /e}}} => 1: remote.engines.e: requires version; write e.g.
remote: {engines: {e: {libraries: /e, version: "0123456789ab", environment: {E: "{host}"}}}} => 1:
    remote.engines.e.environment.E: {host} is not known; write {server} or {session}
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
max_per_request: {policies: [be]}\nnamespaces:\n  a: {defaults: {policy: bs}} =>
    3: namespaces.a.defaults.policy: "bs" is not among max_per_request.policies; write be
"""


@pytest.mark.parametrize("row", CONTRADICTING.replace("\n    ", " ").strip().splitlines())
def test_contradicting_keys_are_reported_once(row: str) -> None:
    text, told = row.replace(r"\n", "\n").split(" => ")
    [line] = problems(text + ("" if "namespaces" in text else "\nnamespaces: {b: {}, c: {}}\n"))
    assert line.startswith(told)


SHORT = """
defaults: {policy: be}
max_per_request: {policies: [be, fs, burst-share]}
profiles: {third: {equal: 3, policy: be}, half: {equal: 2, policy: fs}}
"""


def test_a_policy_may_have_its_short_name() -> None:
    full = SHORT.replace("be", "best-effort").replace("fs", "fixed-share")
    assert parse(SHORT, FILE) == parse(full, FILE)


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
    try:
        parse(yaml.safe_dump(document), FILE)
    except ConfigError as error:
        assert all(problem.line > 0 for problem in error.problems)  # noqa: PT017 - it may be right


CARDS = """\
max_tenants: 9
cards:
  A100: {allowed_mode: shared, max_tenants: 4}
  PCIE: {allowed_mode: exclusive, max_tenants: 5}
  "1": {max_tenants: 2}
  GPU-1:
    allowed_mode: any
  "10": {allowed_mode: exclusive}
namespaces:
  team: {max_per_node: {cards: 2}}
"""


OF_NAMESPACES = """
audit: {over_quota: observe, gate_bypass: observe}
compatibility: refuse
dialects: {accept: [hami]}
idle: {after: 2h, action: warn}
namespaces:
  team-a:
    audit: {over_quota: kill}
    compatibility: ignore
    dialects: {mode: strict}
    idle: {after: 30m}
  "dev-*": {idle: {after: never}}
"""


PRICES = """
prices:
  currency: EUR
  gpu_hour: 1.20
  gib_hour: 0.02
  models:
    "H200 NVL": {gpu_hour: 3}
    h200: {gpu_hour: 4, gib_hour: 0}
"""


def test_a_namespace_stands_above_the_node_key_by_key() -> None:
    found = parse(OF_NAMESPACES, FILE)
    assert found.users.over == "observe"
    other, team, dev = (found.terms_of(name) for name in ("other", "team-a", "dev-x"))
    assert found.terms.over == other.over == dev.over == "observe"
    assert (team.over, team.compute) == ("kill", "observe")
    assert (other.compat, team.compat, dev.compat) == ("refuse", "ignore", "refuse")
    hami = frozenset({"hami"})
    assert (other.dialects, team.dialects) == (Dialects("lenient", hami), Dialects("strict", hami))
    warned = [one.idle for one in (other, team, dev)]
    assert warned == [IdlePolicy(7200, "warn"), IdlePolicy(1800, "warn"), IdlePolicy(None, "warn")]


# --- cards ---


@pytest.mark.parametrize(
    ("index", "uuid", "model", "mode", "max_tenants"),
    [
        (0, "GPU-0", "H200", "any", 9),
        (0, "GPU-0", "a100-sxm4", "shared", 4),
        (0, "GPU-0", "A100-PCIE", "shared", 4),
        (0, "GPU-0", "V100-PCIE", "exclusive", 5),
        (1, "GPU-9", "A100-SXM4", "shared", 2),
        (1, "GPU-1", "A100-SXM4", "any", 2),
        (10, "GPU-9", "H200", "exclusive", 9),
        # A number is an index and no part of a model's name.
        (3, "GPU-3", "RTX 10", "any", 9),
    ],
)
def test_the_nearest_section_of_a_card_holds_key_by_key(
    index: int, uuid: str, model: str, mode: str, max_tenants: int
) -> None:
    rule = parse(CARDS, FILE).rule_of(index, uuid, model)
    assert (rule.mode, rule.max_tenants) == (mode, max_tenants)


# --- idle ---


@given(st.integers(1, 999_999))
def test_a_duration_is_written_as_it_is_read(seconds: int) -> None:
    assert parse_duration(exact_duration(seconds)) == seconds


def read(policy: IdlePolicy, after: str, operator: str = "") -> QuotaRequest:
    annotations = {"gpushare.io/memory": "4GiB", "gpushare.io/idle-after": after}
    requested = parse_spec_request(
        annotations,
        {},
        of_pod=None,
        cards=None,
        terms_of=lambda _: RequestPolicy(idle=policy),
        operator={"idle-after": operator} if operator else None,
    )
    return requested.quota


def effective(policy: IdlePolicy, request: QuotaRequest) -> IdlePolicy:
    return policy.of_container(to_record(request.requested))


@pytest.mark.parametrize("action", ["report", "kick"])
def test_a_container_may_shorten_the_time_and_has_the_nodes_action(action: str) -> None:
    node = IdlePolicy(7200, action)
    request = read(node, "30m")
    assert (request.notes, effective(node, request)) == ((), IdlePolicy(1800, action))


def test_a_longer_time_is_the_nodes_and_says_so() -> None:
    node = IdlePolicy(7200, "pause")
    request = read(node, "7d")
    assert str(request.requested["idle-after"].source) == "default idle.after"
    assert request.requested["idle-after"].text == "2h"
    why = "was not applied: idle.after of this node, 2h, takes precedence"
    assert request.notes == (f'annotation gpushare.io/idle-after "7d" {why}',)
    assert effective(node, request) == node


def test_the_operators_time_for_a_container_stands_above_the_nodes() -> None:
    node = IdlePolicy(7200, "pause")
    request = read(node, "30m", operator="7d")
    assert effective(node, request) == IdlePolicy(7 * 86400, "pause")


# --- reports ---


def test_a_models_price_replaces_that_of_all_cards() -> None:
    found = parse(PRICES, FILE).prices
    assert (found.currency, found.basis) == ("EUR", "larger")
    assert found.rate_of("NVIDIA A100-SXM4-80GB") == Rate(1.2, 0.02)
    assert found.rate_of("NVIDIA H200 NVL") == Rate(3, 0.02)
    assert found.rate_of("NVIDIA H200") == Rate(4, 0)
