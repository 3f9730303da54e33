# SPDX-License-Identifier: Apache-2.0
"""Two readers of one config.json: if the launcher finds no request, neither does the daemon.

The launcher's reader is C and decides whether the daemon is asked at all; the daemon's is Python
and decides what is given. A text that the two read differently would be a way past both.
"""

from __future__ import annotations

import json
import random
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare.oci import injected_gpu
from gpushare.oci import spec as specs
from gpushare.quota import keys
from gpushare.quota.dialects import DIALECTS
from gpushare.quota.dialects.vendor_key import KeyLocation
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from gpushare.quota.request import visible_devices
from gpushare.quota.request_policy import Dialects

from .driver import Driver
from .spec import filled


def theirs(where: KeyLocation) -> tuple[str, ...]:
    """Return the keys of other systems that a runtime may see there, a container being `a`."""
    found = (row.name for one in DIALECTS.values() for row in one.rows if row.where == where)
    return tuple(dict.fromkeys(map(filled, found)))


#: What asks, and what only looks like it: to the eye, to another case, to a careless comparison.
ANNOTATIONS: Final = (
    *(key.annotation for key in keys.KEYS.values()),
    "gpushare.io/",
    "gpushare.io",
    "Gpushare.io/memory",
    "gpushare.io/container.a.memory",
    "gpushare.io/memory\0",
    "\ufeffgpushare.io/memory",
    " gpushare.io/memory",
    "gpushare.i\u043e/",
    *theirs("annotation"),
    "gpu-memory2",
    "nvidia.com/container.a.x",
    "a",
    "",
    "\u2028",
    "nvidia.com/container..gpu-memory.limit",
    "nvidia.com/container.a.b.gpu-memory.limit",
    "io.kubernetes.cri.container-type",
    "io.kubernetes.cri.container-name",
    "x-gpushare",
)
VARIABLES: Final = (
    *(f"{key.env}=1" for key in keys.KEYS.values()),
    "GPUSHARE_",
    "GPUSHARE_=",
    "gpushare_memory=1GiB",
    "GPUSHARE_MEMORY",
    "=GPUSHARE_MEMORY=1",
    "GPUSHARE_MEMORY\0=1GiB",
    "\0GPUSHARE_MEMORY=1",
    "GPUSHARE_LOG=1",
    "GPUSHARE_LOG\0=1",
    "GPUSHARE_PORT=1",
    "GPUSHARE_SERVICE_HOST=x",
    "GPUSHARE_MEMORY_PORT=1",
    "PATH=/bin",
    "=",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICE=all",
    "",
    *(f"{name}={text}" for name in theirs("env") for text in ("1", "1g", "0=1G", "")),
    "CUDA_DEVICE_MEMORY_LIMIT_16=1g",
    "CUDA_DEVICE_MEMORY_LIMITS=1g",
    "\u00fc=1",
)
VALUES: Final = st.sampled_from(
    ["1GiB", "1", "0.5", "4Gi", "sandbox", "", "container", "\U0001f600", "\x7f"]
)
NUMBERS: Final = st.sampled_from(["195", "195.0", "1.95e2", "-1", "1e400", "NaN", "null", "0195"])
NODES: Final = st.sampled_from(["/dev/nvidia0", "/dev/nvidiactl", "/dev/null", "/DEV/nvidia0", ""])


_DAMAGES: Final = (*[""] * 30, "\\ud800", "\\udc00", "\\u00", "\\x", "\t", "\udcff")


def written(text: str, seed: int) -> str:
    """Return a text as JSON has it, any of its characters as an escape, some of them damaged."""
    rng = random.Random(seed)
    parts = [
        f"\\u{ord(character):04{rng.choice('xX')}}"
        if ord(character) < 0x10000 and not rng.randrange(10)
        else json.dumps(character, ensure_ascii=rng.random() < 0.5)[1:-1]
        for character in text
    ]
    parts.insert(rng.randrange(len(parts) + 1), rng.choice(_DAMAGES))
    return f'"{"".join(parts)}"'


def strings(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(written, texts, st.integers(0, 1 << 16))


def members(keys: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Objects, with a key possibly more than once."""
    pair = st.tuples(keys, values).map(":".join)
    return st.lists(pair, max_size=4).map(lambda pairs: "{" + ",".join(pairs) + "}")


def arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, max_size=4).map(lambda items: "[" + ",".join(items) + "]")


noted = members(strings(st.sampled_from(ANNOTATIONS)), strings(VALUES))
process = members(st.just('"env"'), arrays(strings(st.sampled_from(VARIABLES))))
device = members(
    st.sampled_from(['"path"', '"major"', '"\\u0070ath"']), st.one_of(strings(NODES), NUMBERS)
)
linux = members(
    st.sampled_from(['"devices"', '"resources"', '"Devices"']),
    st.one_of(arrays(device), members(st.just('"devices"'), arrays(device)), st.just("null")),
)
parts = st.one_of(
    st.tuples(st.sampled_from(['"annotations"', '"annotation\\u0073"']), noted),
    st.tuples(st.sampled_from(['"process"', '"Process"']), process),
    st.tuples(st.just('"linux"'), linux),
    st.tuples(strings(st.sampled_from(["x", "y", ""])), st.one_of(noted, NUMBERS)),
).map(":".join)
documents = st.lists(parts, max_size=5).map(lambda found: "{" + ",".join(found) + "}")


def asks(text: bytes) -> bool:
    """Whether the daemon, reading `text`, would find a request, be it one that it refuses."""
    spec = specs.parse(text)
    if spec.is_sandbox() and not injected_gpu.is_placed(spec):
        return False
    if injected_gpu.is_placed(spec) or visible_devices(spec.variables) is not None:
        return True
    try:
        read = parse_request(
            spec.annotations, spec.variables, trust="request", dialects=Dialects()
        ).valid()
        return bool(read.requested)
    except QuotaError:
        return True


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(documents)
def test_without_a_marker_the_daemon_finds_no_request(driver: Driver, document: str) -> None:
    text = document.encode(errors="surrogateescape")
    seen = driver.spec(text)
    try:
        found = asks(text)
    except specs.SpecError:
        return  # nothing is given of what cannot be read
    assert seen["error"] is None, "the daemon reads what the launcher calls broken"
    assert not seen["duplicate"]
    if seen["marker"] == "none":
        assert not found


def doubled(first: str, second: str) -> bytes:
    return f'{{"annotations":{{"{first}":"1GiB","{second}":"2GiB"}}}}'.encode()


@pytest.mark.parametrize(
    "text",
    [
        doubled("gpushare.io/memory", "gpushare.io/memory"),
        doubled("gpushare.io/memory", "gpushare.io\\/memory"),
        doubled("gpushare.io/memory", "\\u0067pushare.io/memory"),
        doubled("gpushare.io/\\u006Demory", "gpushare.io/\\u006demory"),
        b'{"process":{"env":["GPUSHARE_MEMORY=1GiB"]},"\\u0070rocess":{}}',
        b'{"annotations":{"gpushare.io/x":"\\ud83d"}}',
        b'{"annotations":{"gpushare.io/x":"\xff"}}',
        b'{"annotations":{"gpushare.io/memory":"1GiB"},"x":NaN}',
        b'{"annotations":{"gpushare.io/memory":"1GiB"},"x":1e400}',
        b'{"annotations":{"gpushare.io/memory":"1GiB"},"x":'
        + b"[" * 100_000
        + b"]" * 100_000
        + b"}",
        b'\xef\xbb\xbf{"annotations":{"gpushare.io/memory":"1GiB"}}',
    ],
    ids=range(11),
)
def test_an_ambiguous_request_is_seen_by_the_launcher_and_refused_by_the_daemon(
    driver: Driver, text: bytes
) -> None:
    """The launcher sees the request, in whatever form, and the daemon refuses to read it."""
    seen = driver.spec(text)
    assert seen["marker"] == "strong" or seen["mentioned"]
    with pytest.raises(specs.SpecError):
        specs.parse(text)


def test_an_environment_of_megabytes_is_read_to_its_end(driver: Driver) -> None:
    env = [f"X{number}={'x' * 100}" for number in range(30_000)]
    for last, marker in (("PATH=/bin", "none"), ("GPUSHARE_MEMORY=1GiB", "strong")):
        text = json.dumps({"process": {"env": [*env, last]}}).encode()
        assert 3 << 20 < len(text) < specs.MAX_BYTES
        assert driver.spec(text)["marker"] == marker
        assert asks(text) == (marker == "strong")
