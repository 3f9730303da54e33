# SPDX-License-Identifier: Apache-2.0
"""What the labels of a node set, of every system, and what is said of labels that are wrong."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpushare.kubernetes.api.labels import settings_of
from gpushare.protocol.kubernetes import MODES
from gpushare.quota.dialects import DIALECTS
from gpushare.quota.errors import BadValue
from gpushare.quota.node_settings import (
    ALLOWED_MODE,
    CORDONED,
    NODE_MODE,
    OWN_LABELS,
    PLACEMENT,
    POLICY,
)
from tests.stack.api_server import Body

QGPU = "tke.cloud.tencent.com/qgpu-schedule-policy"


MGPU = "vke.volcengine.com/mgpu-compute-policy"


VKE = "vke.node.gpu.schedule"


ACK = "ack.node.gpu.schedule"


ACK_PLACEMENT = "ack.node.gpu.placement"


GKE = "cloud.google.com/gke-gpu-sharing-strategy"


WANTED_POLICY = "gpushare.io/wanted-policy"


WANTED_MODE = "gpushare.io/wanted-mode"


WANTED_PLACEMENT = "gpushare.io/wanted-placement"
#: Every value of every label, by hand from the manuals of the vendors: the tables must agree.
SPELLINGS = [
    *((QGPU, text, POLICY, "best-effort") for text in ("be", "best-effort")),
    *((QGPU, text, POLICY, "fixed-share") for text in ("fs", "fixed-share")),
    *((QGPU, text, POLICY, "burst-share") for text in ("bs", "burst-share")),
    (MGPU, "fixed-share", POLICY, "fixed-share"),
    (MGPU, "guaranteed-burst-share", POLICY, "burst-share"),
    (MGPU, "native-burst-share", POLICY, "native-burst-share"),
    (VKE, "mgpu", ALLOWED_MODE, "any"),
    (VKE, "nvidia", ALLOWED_MODE, "exclusive"),
    *((ACK, text, ALLOWED_MODE, "exclusive") for text in ("default", "topology")),
    *((ACK, text, ALLOWED_MODE, "shared") for text in ("share", "cgpu", "mps")),
    (ACK, "core_mem", ALLOWED_MODE, "any"),
    (ACK_PLACEMENT, "binpack", PLACEMENT, "binpack"),
    (ACK_PLACEMENT, "spread", PLACEMENT, "spread"),
    *((GKE, text, POLICY, "best-effort") for text in ("time-sharing", "TIME_SHARING")),
    *((GKE, text, POLICY, "fixed-share") for text in ("mps", "MPS")),
    *(
        (WANTED_POLICY, text, POLICY, text)
        for text in ("fixed-share", "burst-share", "best-effort", "native-burst-share")
    ),
    *((WANTED_PLACEMENT, text, PLACEMENT, text) for text in ("binpack", "spread", "topology")),
    *((WANTED_MODE, text, NODE_MODE, text) for text in MODES),
    *((WANTED_MODE, text, ALLOWED_MODE, text) for text in ("any", "shared", "exclusive")),
]


def node_of(labels: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> Body:
    return {"metadata": {"labels": dict(labels), "annotations": dict(annotations or {})}}


def wanted(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without the labels that set them, of labels that are all right."""
    found = settings_of(node_of(labels))
    assert (found.problems, found.kept) == ((), frozenset())
    return {key: setting["value"] for key, setting in found.settings.items()}


@pytest.mark.parametrize(("label", "text", "key", "value"), SPELLINGS)
def test_every_spelling_of_every_system_sets_one_setting(
    label: str, text: str, key: str, value: str
) -> None:
    found = settings_of(node_of({label: text, "kubernetes.io/os": "linux"}))
    assert found.settings == {key: {"value": value, "source": f"node label {label}"}}


def test_no_label_and_no_value_of_the_tables_is_missing_above() -> None:
    rows = [row for one in DIALECTS.values() for row in one.rows if row.where == "node label"]
    applied = {row.name: row for row in rows if row.setting}
    assert applied.keys() | OWN_LABELS.keys() == {label for label, _, _, _ in SPELLINGS}
    for name, row in applied.items():
        with pytest.raises(BadValue) as refused:
            row.read("-")
        listed = refused.value.fix.removeprefix("write one of ").split(", ")
        assert set(listed) == {text for label, text, _, _ in SPELLINGS if label == name}


def test_gpushares_own_label_takes_precedence_over_those_of_other_systems() -> None:
    vendors = {QGPU: "be", MGPU: "native-burst-share", ACK: "cgpu"}
    assert wanted({**vendors, WANTED_POLICY: "fixed-share", WANTED_MODE: "exclusive"}) == {
        POLICY: "fixed-share",
        ALLOWED_MODE: "exclusive",
    }


def test_two_systems_that_agree_set_it_and_two_that_disagree_do_not() -> None:
    assert wanted({QGPU: "fs", MGPU: "fixed-share"}) == {POLICY: "fixed-share"}
    found = settings_of(node_of({QGPU: "fs", MGPU: "native-burst-share", ACK_PLACEMENT: "spread"}))
    assert found.kept == {POLICY}
    assert found.settings.keys() == {PLACEMENT}
    assert found.problems == (
        (
            f"{POLICY} is not clear: node label {QGPU} (fixed-share) and node label {MGPU} "
            f"(native-burst-share) disagree. Remove one, or set {WANTED_POLICY}."
        ),
    )


@pytest.mark.parametrize(
    ("labels", "kept", "problem"),
    [
        (
            {WANTED_MODE: "dra2", ACK: "cgpu"},
            {NODE_MODE, ALLOWED_MODE},
            "node label gpushare.io/wanted-mode=dra2: not a valid value. Write annotations, plugin",
        ),
        (
            {"gpushare.io/wanted-polcy": "be"},
            set(),
            "node label gpushare.io/wanted-polcy=be: unkn",
        ),
        (
            {QGPU: "", MGPU: "fixed-share"},
            {POLICY},
            f'Tencent qGPU: node label {QGPU}="": not a v',
        ),
    ],
)
def test_a_wrong_label_leaves_its_setting_as_it_is(
    labels: dict[str, str], kept: set[str], problem: str
) -> None:
    found = settings_of(node_of(labels))
    assert not found.settings
    assert found.kept == kept
    [text] = found.problems
    assert text.startswith(problem)


CORDON = "hami.io/device-cordon"


@pytest.mark.parametrize("text", ["", "0", "GPU-1,,GPU-2", "GPU-1;GPU-2", "GPU-" + "1" * 65])
def test_an_annotation_that_lists_no_cards_is_reported(text: str) -> None:
    found = settings_of(node_of({}, {CORDON: text}))
    assert found.kept == {CORDONED}
    [problem] = found.problems
    assert problem.startswith(f"HAMi: node annotation {CORDON}=")
