# SPDX-License-Identifier: Apache-2.0
"""Any request, in any target's keys: the same when it is read again, or reported as lost."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.manifest import read
from gpushare.manifest.convert import convert, requests
from gpushare.manifest.convert.conversion import CannotConvert
from gpushare.manifest.convert.targets import TARGETS
from gpushare.manifest.request import request_of
from gpushare.quota.keys import POLICIES
from gpushare.quota.request import Layer

MEMORY = st.one_of(
    st.integers(1, 80).map(lambda gib: f"{gib}GiB"),
    st.integers(300, 90_000).map(lambda mib: f"{mib}MiB"),
    st.integers(1 << 28, 1 << 33).map(lambda size: f"{size}B"),
)
NAMES = st.sampled_from(["A100", "T4,A10", "GPU-11", "GPU-11,GPU-22", "A100,GPU-11"])
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "memory": MEMORY,
        "memory-percent": st.integers(1, 100).map(str),
        "memory-limit": MEMORY,
        "cores": st.integers(1, 100).map(str),
        "count": st.integers(1, 16).map(str),
        "devices": st.sampled_from(["0", "0,2", "GPU-11", "GPU-11,GPU-22"]),
        "allow": NAMES,
        "deny": NAMES,
        "compute-capability": st.sampled_from([">=8.0", "8.9+", ">7.5,<=9.0"]),
        "policy": st.sampled_from(POLICIES),
        "weight": st.integers(1, 1000).map(str),
        "priority": st.integers(0, 9).map(str),
        "class": st.sampled_from(["online", "offline"]),
        "placement": st.sampled_from(["binpack", "spread", "topology"]),
        "idle-after": st.sampled_from(["90s", "30m", "2h", "7d"]),
        "time-limit": st.sampled_from(["90s", "30m", "8h"]),
        "backend": st.sampled_from(["driver", "interposer", "exclusive", "mps"]),
    },
)


def pod(request: dict[str, str]) -> str:
    """Return a pod with `request` in our keys."""
    annotations = {f"gpushare.io/{key}": text for key, text in request.items()}
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    return str(yaml.safe_dump(manifest))


def asked(text: str) -> Layer:
    (container,) = read("pod.yaml", text).containers
    return request_of(container, strict=False).requested


@pytest.mark.parametrize("target", ["hami", "qgpu"])
@given(request=REQUESTS.filter(bool))
@settings(max_examples=150)
def test_any_request_is_rewritten_equally_or_reported(target: str, request: dict[str, str]) -> None:
    text = pod(request)
    try:
        there = convert(read("pod.yaml", text), TARGETS[target])
    except CannotConvert:
        return
    assert not any("gpushare.io/" in line for line in there.text.splitlines())
    lost = requests.dropped_fields(one.why.partition(" ")[0] for one in there.lost)
    before = requests.meaning_of(asked(text))
    assert set(requests.differing_fields(before, requests.meaning_of(asked(there.text)))) <= lost
    back = convert(read("pod.yaml", there.text), TARGETS["gpushare"])
    assert set(requests.differing_fields(before, requests.meaning_of(asked(back.text)))) <= lost
