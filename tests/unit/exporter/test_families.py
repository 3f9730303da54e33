# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads, also by others' names for it: the whole of it is in exposition.txt.

`python -m tests.unit.exporter.test_families` writes that file.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from gpushare.exporter.aliases import COMPAT
from gpushare.exporter.exposition import FAMILIES, expose
from gpushare.exporter.metric_family import OF_CARD, OF_CONTAINER, Snapshot, with_unique_ids

from .made import DOWN, GIB, card, part, snapshot, tenant

if TYPE_CHECKING:
    from collections.abc import Mapping

RECORDED: Final = Path(__file__).with_name("exposition.txt")
#: Two cards, of one of which little is known; and containers in every state.
NODE: Final = replace(
    snapshot(
        tenant(
            id="train",
            idle_since=1763699000.0,
            eviction={"state": "evicted", "waits_since": 1763700140.0},
            cards=[part(uuid="GPU-0", evicted_bytes=GIB, expected_bytes=20, driver_bytes=30)],
        ),
        tenant(
            "kube-system/dns/main",
            id="host",
            engine="host",
            interventions=[{"by": "audit"}],
            cards=[
                part(0, uuid="GPU-0"),
                part(
                    1,
                    uuid="GPU-1",
                    utilization=None,
                    utilization_source="",
                    encoder_percent=40,
                    decoder_percent=None,
                ),
            ],
        ),
        tenant(
            "team/train-0/side",
            id="side",
            isolation="exclusive",
            interventions=[{"by": "stop"}],
            cards=[part(1, uuid="GPU-1", cores=0, expected_bytes=None)],
        ),
        cards=[
            card(uuid="GPU-0", xids={"79": 2, "31": 1}),
            card(1, uuid="GPU-1", used_bytes=None, utilization=None, sensors={}, cordoned=True),
        ],
    ),
    taken=1763700200.0,
)


def recorded() -> str:
    return expose(NODE, compat=[*COMPAT])[0].decode()


def values(taken: Snapshot, name: str, **labels: str) -> list[float]:
    """Return the figures of the series of that name with at least these labels."""
    return [value for said, value in series(taken, name) if labels.items() <= said.items()]


def series(taken: Snapshot, name: str) -> list[tuple[Mapping[str, str], float]]:
    text, content_type = expose(taken)
    assert content_type.startswith("text/plain")
    return [
        (sample.labels, sample.value)
        for family in plain(text.decode())
        for sample in family.samples
        if sample.name == name
    ]


def test_every_series_has_its_name_its_labels_and_its_value_in_base_units() -> None:
    assert recorded() == RECORDED.read_text()


def test_other_exporters_metrics_are_off_by_default() -> None:
    names = re.findall(r"(?m)^# TYPE (\w+)", expose(NODE)[0].decode())
    assert {*names} == {family.name for family in FAMILIES}


def test_of_two_containers_of_one_name_the_later_counts_for_others_exporters() -> None:
    twice = snapshot(
        tenant(id="b", created=2.0, cards=[part(used_bytes=2)]),
        tenant(id="a", created=1.0, cards=[part(used_bytes=1)]),
        tenant("docker-s", id="c"),  # of no pod
    )
    text = expose(twice, compat=[*COMPAT])[0].decode()
    assert re.findall(r"(?m)^hami_vgpu_memory_used_bytes\{.*\} (.*)$", text) == ["2"]


def test_two_containers_of_one_id_have_series_of_their_own() -> None:
    two = [tenant("a", id="test", key="1" * 16), tenant("a", id="test", key="2" * 16)]
    taken = snapshot(*with_unique_ids([*two, tenant("b\udcff", id="other")]))
    shown = [said for said, _ in series(taken, "gpushare_container_hung")]
    ids = [said["container_id"] for said in shown]
    assert ids == [f"test@{'1' * 16}", f"test@{'2' * 16}", "other"]
    assert {said["container"] for said in shown} == {"a", "b?"}


def test_of_a_silent_daemon_only_that_is_exported() -> None:
    text = expose(DOWN)[0].decode()
    assert re.findall(r"(?m)^[^#].*", text) == ['gpushare_up{node="node-1"} 0.0']


def test_names_are_as_prometheus_asks() -> None:
    for family in FAMILIES:
        assert re.fullmatch(r"gpushare(_[a-z]+)+", family.name)
        assert (family.kind == "counter") == family.name.endswith("_total"), family.name
        assert family.help.endswith(".")
        assert "node" in family.labels
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    names = {family.name: family.labels for family in FAMILIES}
    for alias in (alias for families in COMPAT.values() for alias in families):
        assert alias.help.removeprefix("As ").rstrip(".").partition(",")[0] in names, alias.name
    assert names["gpushare_container_memory_used_bytes"] == (*OF_CONTAINER, "kind")
    assert names["gpushare_card_non_tenant_processes"] == (*OF_CARD, "action")


def test_openmetrics_is_used_if_the_client_accepts_it() -> None:
    text, content_type = expose(snapshot(tenant()), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    found = {family.name: family.type for family in openmetrics(text.decode())}  # type: ignore[no-untyped-call]
    assert found["gpushare_container_allocations_denied"] == "counter"
    assert found["gpushare_operation_duration_seconds"] == "histogram"
    assert text.decode().endswith("# EOF\n")


@given(st.text(max_size=40))
def test_a_name_can_be_anything_and_breaks_no_line(name: str) -> None:
    shown = values(snapshot(tenant(f"x{name}")), "gpushare_container_memory_quota_bytes")
    assert shown == [4 * GIB]


def test_the_rows_name_no_process_of_the_host() -> None:
    seen = card(non_tenant_processes=[{"pid": 812, "name": "Xorg", "bytes": GIB, "container": ""}])
    document = snapshot(tenant(), cards=[seen]).document()
    assert "Xorg" not in str(document)
    assert document["cards"][0]["non_tenant_bytes"] == 3 * GIB


if __name__ == "__main__":
    sys.exit(0 if RECORDED.write_text(recorded()) else 1)
