# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads: the families, their labels, and nothing that is not known."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from gpushare import xid
from gpushare.exporter import sensors
from gpushare.exporter.exposition import FAMILIES, expose
from gpushare.exporter.metric_family import OF_CARD, OF_CONTAINER, Snapshot, with_unique_ids
from gpushare.exporter.node import WATCHED
from gpushare.protocol.rows import KINDS

from .made import DOWN, GIB, UUID, card, part, snapshot, tenant

if TYPE_CHECKING:
    from collections.abc import Mapping

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(taken: Snapshot) -> Series:
    text, content_type = expose(taken)
    assert content_type.startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in plain(text.decode())
        for sample in family.samples
    }


def values(taken: Snapshot, name: str, **labels: str) -> list[float]:
    """Return the figures of the series of that name with at least these labels."""
    return [
        value
        for (found, said), value in read(taken).items()
        if found == name and labels.items() <= dict(said).items()
    ]


def labels_of(taken: Snapshot, name: str) -> list[Mapping[str, str]]:
    return [dict(said) for (found, said) in read(taken) if found == name]


def test_a_container_has_labels_for_id_name_pod_namespace_and_card() -> None:
    [said] = labels_of(snapshot(tenant()), "gpushare_container_memory_quota_bytes")
    assert said == {
        "node": "node-1",
        "gpu_uuid": UUID,
        "gpu_index": "0",
        "container_id": "4f5e" + "0" * 60,
        "container": "main",
        "pod": "train-0",
        "namespace": "team",
        "mode": "shared",
        "policy": "fixed-share",
    }


def test_a_host_users_command_has_no_pod_and_namespace() -> None:
    [said] = labels_of(
        snapshot(tenant("kube-system/dns/main", engine="host")),
        "gpushare_container_memory_quota_bytes",
    )
    assert (said["namespace"], said["pod"], said["container"]) == ("", "", "kube-system/dns/main")


def test_two_containers_of_one_id_have_series_of_their_own() -> None:
    two = [tenant("a", id="test", key="1" * 16), tenant("a", id="test", key="2" * 16)]
    taken = snapshot(*with_unique_ids([*two, tenant("b\udcff", id="other")]))
    ids = [said["container_id"] for said in labels_of(taken, "gpushare_container_hung")]
    assert ids == [f"test@{'1' * 16}", f"test@{'2' * 16}", "other"]
    names = {said["container"] for said in labels_of(taken, "gpushare_container_hung")}
    assert names == {"a", "b\\udcff"}


def test_its_figures_are_in_base_units() -> None:
    taken = snapshot(tenant())
    for name, value in {
        "gpushare_container_memory_quota_bytes": 4 * GIB,
        "gpushare_container_memory_limit_bytes": 6 * GIB,
        "gpushare_container_memory_peak_bytes": 3 * GIB,
        "gpushare_container_allocations_denied_total": 3,
        "gpushare_container_cores_quota_ratio": 0.3,
        "gpushare_container_gpu_time_seconds_total": 12.5,
        "gpushare_container_throttled_seconds_total": 1.5,
        "gpushare_container_throttled_ratio": 0.25,
        "gpushare_container_forced_launches_total": 2,
        "gpushare_container_last_active_timestamp_seconds": 1763700100.0,
        "gpushare_container_priority": 5,
        "gpushare_card_memory_capacity_bytes": 140 * GIB,
        "gpushare_card_memory_used_bytes": 5 * GIB,
        "gpushare_card_memory_allocated_bytes": 12 * GIB,
        "gpushare_card_memory_burst_bytes": 2 * GIB,
        "gpushare_card_memory_non_tenant_bytes": 3 * GIB,
        "gpushare_card_cores_allocated_ratio": 0.9,
        "gpushare_card_utilization_ratio": 0.71,
        "gpushare_card_tenants": 2,
        "gpushare_card_max_tenants": 16,
        "gpushare_card_cordoned": 0,
        "gpushare_card_healthy": 1,
        "gpushare_card_accounting_drift_bytes": -1024,
        "gpushare_up": 1,
    }.items():
        assert values(taken, name) == [value], name
    assert values(taken, "gpushare_container_cores_utilization_ratio", source="nvml") == [0.295]
    assert values(taken, "gpushare_card_non_tenant_processes", action="ignore") == [1]
    assert values(taken, "gpushare_card_non_tenant_processes", action="warn") == [2]
    assert values(taken, "gpushare_container_class_info") == [1]
    policy = {"policy": "fixed-share", "effective_policy": "burst-share"}
    assert values(taken, "gpushare_container_policy_info", **policy) == [1]
    assert values(taken, "gpushare_card_info", mode="shared", health="ok") == [1]
    assert values(taken, "gpushare_build_info", driver="580.159.04", cuda="13.0") == [1]


EVICTED = {"state": "evicted", "waits_since": 10.0}


def test_an_eviction_has_its_state_memory_and_wait() -> None:
    taken = replace(
        snapshot(
            tenant(eviction=EVICTED, cards=[part(evicted_bytes=GIB)]),
            tenant(id="b" * 64),
        ),
        taken=70.0,
    )
    state, evicted = "gpushare_container_eviction_state", "4f5e" + "0" * 60
    assert values(taken, state, state="evicted", container_id=evicted) == [1]
    assert values(taken, state, state="failed", container_id=evicted) == [0]
    assert sum(values(taken, state, container_id="b" * 64)) == 0
    assert values(taken, "gpushare_container_memory_evicted_bytes") == [GIB, 0]
    assert values(taken, "gpushare_container_restore_wait_seconds") == [60, 0]


def test_used_memory_is_split_by_kind_and_adds_up() -> None:
    used = values(snapshot(tenant()), "gpushare_container_memory_used_bytes")
    assert (len(used), sum(used)) == (len(KINDS), 3 * GIB)


def test_a_card_has_each_xid_that_it_had_and_0_of_those_that_end_it() -> None:
    taken = snapshot(cards=[card(xids={"79": 2, "31": 1})])
    assert values(taken, "gpushare_card_xid_errors_total", xid="79") == [2]
    assert values(taken, "gpushare_card_xid_errors_total", xid="31") == [1]
    assert values(taken, "gpushare_card_xid_errors_total", xid="48") == [0]


def test_the_xids_that_end_a_card_are_those_that_the_daemon_takes_for_it() -> None:
    assert {str(number) for number in xid.FATAL} == set(WATCHED)


def test_the_origin_of_a_stop_is_exported() -> None:
    frozen, stopping = "gpushare_container_frozen", "gpushare_container_stopping"
    taken = snapshot(tenant(interventions=[{"by": "audit"}]))
    assert values(taken, frozen, by="audit") == [1]
    assert values(taken, frozen, by="operator") == values(taken, stopping) == [0]
    taken = snapshot(tenant(interventions=[{"by": "stop"}]))
    assert (values(taken, stopping), sum(values(taken, frozen))) == ([1], 0)


def test_an_idle_container_has_the_time_for_which_it_is_idle() -> None:
    taken = snapshot(tenant(idle_since=10.0), tenant(id="b" * 64))
    assert values(replace(taken, taken=7210.0), "gpushare_container_idle_seconds") == [7200, 0]


def test_an_unknown_value_has_no_series() -> None:
    taken = snapshot(
        tenant(cards=[part(utilization=None, utilization_source="")]),
        cards=[card(utilization=None, used_bytes=None)],
    )
    assert values(taken, "gpushare_container_cores_utilization_ratio") == []
    assert values(taken, "gpushare_card_utilization_ratio") == []
    assert values(taken, "gpushare_card_memory_used_bytes") == []
    assert values(taken, "gpushare_card_memory_capacity_bytes") == [140 * GIB]


def test_a_container_of_two_cards_is_denied_once() -> None:
    taken = snapshot(tenant(cards=[part(0), part(1)]), cards=[card(0), card(1)])
    assert values(taken, "gpushare_container_allocations_denied_total") == [3]
    assert len(values(taken, "gpushare_container_memory_quota_bytes")) == 2


def test_drift_is_of_all_containers_of_a_card_and_no_account_has_none() -> None:
    taken = snapshot(
        tenant("a", id="a", cards=[part(expected_bytes=20, driver_bytes=30)]),
        tenant("b", id="b", cards=[part(expected_bytes=30, driver_bytes=None)]),
        tenant("c", id="c", isolation="exclusive", cards=[part(1, expected_bytes=None)]),
        cards=[card(0), card(1)],
    )
    assert values(taken, "gpushare_card_accounting_drift_bytes", gpu_index="0") == [20]
    assert values(taken, "gpushare_card_accounting_drift_bytes", gpu_index="1") == [0]


def test_the_buckets_of_durations_count_up() -> None:
    taken = snapshot()
    buckets = {
        dict(said)["le"]: value
        for (name, said), value in read(taken).items()
        if name == "gpushare_operation_duration_seconds_bucket"
    }
    assert (buckets["0.001"], buckets["0.0025"], buckets["0.005"]) == (1, 1, 3)
    assert (buckets["10.0"], buckets["+Inf"]) == (3, 4)
    assert values(taken, "gpushare_operation_duration_seconds_count", operation="create") == [4]
    assert values(taken, "gpushare_operation_duration_seconds_sum", operation="create") == [12.5]
    refused = values(taken, "gpushare_operation_failures_total", operation="create", code="refused")
    assert refused == [1]
    # From the start on: what begins with 1 is no increase to Prometheus.
    assert values(taken, "gpushare_operation_failures_total", code="internal") == [0]
    assert values(taken, "gpushare_events_total", event="ledger-damaged") == [0]


def test_sensors_are_exported_in_base_units_where_they_are_known() -> None:
    taken = snapshot()
    names = {family.name for family in sensors.FAMILIES}
    assert {
        (name, frozenset(each for each in said if each[0] not in OF_CARD)): [value]
        for (name, said), value in read(taken).items()
        if name in names
    } == {
        ("gpushare_card_temperature_celsius", frozenset()): [41],
        ("gpushare_card_memory_temperature_celsius", frozenset()): [47],
        ("gpushare_card_power_watts", frozenset()): [250.5],
        ("gpushare_card_energy_joules_total", frozenset()): [7000.25],
        ("gpushare_card_clock_hertz", frozenset({("clock", "sm")})): [1.98e9],
        ("gpushare_card_clock_hertz", frozenset({("clock", "memory")})): [3.201e9],
        ("gpushare_card_memory_copy_utilization_ratio", frozenset()): [0.12],
        ("gpushare_card_encoder_utilization_ratio", frozenset()): [0.03],
        ("gpushare_card_decoder_utilization_ratio", frozenset()): [0.04],
        ("gpushare_card_memory_reserved_bytes", frozenset()): [600 << 20],
        ("gpushare_card_pcie_replays_total", frozenset()): [5],
        ("gpushare_card_ecc_errors_total", frozenset({("type", "corrected")})): [8],
        ("gpushare_card_ecc_errors_total", frozenset({("type", "uncorrected")})): [9],
        ("gpushare_card_remapped_rows", frozenset({("cause", "correctable")})): [6],
        ("gpushare_card_remapped_rows", frozenset({("cause", "uncorrectable")})): [7],
        ("gpushare_card_row_remap_failed", frozenset()): [0],
    }
    unknown = snapshot(cards=[card(sensors={})])
    assert not {name for name, _ in read(unknown)} & names


def test_of_a_silent_daemon_only_that_is_exported() -> None:
    assert read(DOWN) == {("gpushare_up", frozenset({("node", "node-1")})): 0}


def test_every_family_says_its_type_and_help_even_without_series() -> None:
    text, _ = expose(DOWN)
    for family in FAMILIES:
        bare = family.name
        assert f"# HELP {bare} {family.help}\n" in text.decode(), bare
        assert f"# TYPE {bare} {family.kind}\n" in text.decode(), bare


def test_names_are_as_prometheus_asks() -> None:
    for family in FAMILIES:
        assert re.fullmatch(r"gpushare(_[a-z]+)+", family.name)
        assert (family.kind == "counter") == family.name.endswith("_total"), family.name
        assert family.help.endswith(".")
        assert "node" in family.labels
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    names = {family.name: family.labels for family in FAMILIES}
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
