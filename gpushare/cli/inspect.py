# SPDX-License-Identifier: Apache-2.0
"""`gpushare inspect`: the details of one container."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from gpushare.cli import session as shared
from gpushare.cli.session import container_argument
from gpushare.cli.status import (
    cores,
    cores_used,
    latency_class,
    memory,
    share,
    tenant_name,
    throttled,
)
from gpushare.cli.text import count, printable
from gpushare.protocol.rows import RUN_STATES
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.session import Session
    from gpushare.protocol.rows import Intervention, TenantCard, TenantStatus

KEY_WIDTH: Final = len("over-quota action") + 2  # the longest label


@shared.command("inspect")
@container_argument
def command(session: Session, container: str) -> None:
    """Show the details of a container.

    That is its quota, with the source of each key, its cards and its processes. For a breakdown of
    its memory, run `gpushare why`. CONTAINER is the engine's name of the container, or
    namespace/pod/container, or the start of its name or ID if no other begins so.
    """
    tenant = session.client.tenant(container)
    session.show(tenant, lambda: "\n".join(_lines(tenant)))


def _lines(tenant: TenantStatus) -> Iterator[str]:
    yield _line("name", tenant_name(tenant))
    yield _line("id", tenant["id"])
    yield _line("engine", tenant["engine"])
    yield _line("state", tenant["state"])
    for intervention in tenant["interventions"]:
        yield _line(RUN_STATES.get(intervention["by"], "frozen"), _since(intervention))
    yield from _eviction(tenant)
    if tenant["reason"]:
        yield _line("reason", tenant["reason"])
    yield _line("pid", str(tenant["pid"] or "-"))
    yield _line("created", _time(tenant["created"]))
    if (ends := tenant["ends_at"]) is not None:
        yield _line("stopped at", _time(ends))
    yield _line("policy", tenant["policy"] or "-")
    yield _line("isolation", tenant["isolation"] or "-")
    yield from _mps(tenant)
    if tenant["cards"]:
        yield _line("class", latency_class(tenant))
    yield _line("over-quota action", tenant["over_quota_action"] or "-")
    for key, text in sorted(tenant["quota"].items()):
        value, _, source = text.partition(" ")
        yield _line(key, f"{value}   ({source})" if source else value)
    for note in tenant["notes"]:
        yield _line("note", note)
    for warning in tenant["warnings"]:
        yield _line("warning", warning)
    for card in tenant["cards"]:
        yield from _card(tenant, card)
    for process in tenant["processes"]:
        used = "-" if process["bytes"] is None else format_size(process["bytes"])
        inner = process["container_pid"]
        where = "" if inner == process["pid"] else f" (in the container {inner})"
        yield _line("process", f"{process['pid']}{where}  {process['name']}  {used}")


def _mps(tenant: TenantStatus) -> Iterator[str]:
    mps = tenant["mps"]
    if not mps:
        return
    most = f"at most {mps['percentage']} % of the multiprocessors"
    compute = most if mps["percentage"] < 100 else "all multiprocessors"
    by = {
        "cgroup": "the driver, for its cgroup, and the interposer library",
        "server": "the MPS server, for all containers together, and the interposer library",
    }.get(mps["memory_limit"], "the interposer library")
    yield _line("mps compute", f"{compute}, shared at the same time")
    yield _line("mps memory", f"limited by {by}")
    yield _line("mps server", mps["server_state"] or "not running")
    if mps["lost"]:
        yield _line("mps lost", mps["lost"])


def _eviction(tenant: TenantStatus) -> Iterator[str]:
    evicted = tenant["eviction"]
    if evicted is None:
        return
    cards = ", ".join(map(str, evicted["from_cards"]))
    reason = f", reason: {evicted['reason']}" if evicted["reason"] else ""
    yield _line(
        evicted["state"],
        f"since {_time(evicted['since'])}, by {evicted['cause']}{reason}",
    )
    yield _line("host memory", f"{format_size(evicted['bytes'])} of card {cards}")
    if evicted["held"]:
        yield _line("held", f"until gpushare restore {tenant_name(tenant)}")
    if evicted["waits_since"] is not None:
        yield _line("waiting", f"for its restore since {_time(evicted['waits_since'])}")
    if evicted["error"]:
        yield _line("error", evicted["error"])


def _time(seconds: float) -> str:
    found = dt.datetime.fromtimestamp(seconds, dt.timezone.utc).astimezone()
    return found.isoformat(" ", "seconds")


def _since(intervention: Intervention) -> str:
    reason = f", reason: {intervention['reason']}" if intervention["reason"] else ""
    since = "" if intervention["since"] is None else f"since {_time(intervention['since'])}, "
    return f"{since}by {intervention['by']}{reason}"


def _card(tenant: TenantStatus, card: TenantCard) -> Iterator[str]:
    whole = tenant["isolation"] == "exclusive"
    yield f"card {card['index']}  {card['uuid']}"
    yield _line("  memory", memory(card))
    if not whole:
        if card["burst_limit_bytes"] > card["quota_bytes"]:
            now = format_size(card["limit_bytes"])
            most = format_size(card["burst_limit_bytes"])
            yield _line("  burst limit", f"{most}, currently {now}")
            yield _line(
                "  burst used", format_size(max(0, card["used_bytes"] - card["quota_bytes"]))
            )
        if card["over_limit_bytes"]:
            over = format_size(card["over_limit_bytes"])
            yield _line("  over quota", f"allocations fail until it frees {over}")
        if most_bytes := card["oversubscribed_limit_bytes"]:
            managed, most = format_size(card["oversubscribed_bytes"]), format_size(most_bytes)
            yield _line("  oversubscribed", f"{managed} of {most} managed memory")
        yield _line("  tracked", format_size(card["used_bytes"] - card["overhead_bytes"]))
        yield _line("  overhead", f"{format_size(card['overhead_bytes'])}: {_overhead(card)}")
    yield _line("  cores", cores(card))
    yield from _compute(tenant, card, whole=whole)
    if not whole:
        yield _line("  denied", f"{count(tenant['denied_allocations'], 'allocation')} over quota")


def _compute(tenant: TenantStatus, card: TenantCard, *, whole: bool) -> Iterator[str]:
    usage = card["compute"]
    figures = ", ".join(
        f"{cores_used(card, window)} % in {window}" for window in usage["cores_used"]
    )
    source = " (reported by the driver)" if usage["cores_source"] == "driver" else ""
    yield _line("  cores used", f"{figures}{source}")
    codecs = {"encoder": card["encoder_percent"], "decoder": card["decoder_percent"]}
    for engine, percent in codecs.items():
        if percent:
            yield _line(f"  {engine}", f"{percent} % in 1s (reported by the driver)")
    if whole:
        return
    yield _line("  share", share(tenant, card))
    fractions = ", ".join(f"{throttled(card, window)} in {window}" for window in usage["throttled"])
    yield _line("  throttled", fractions)
    yield _line("  gate", f"{usage['gate'] or '-'}, {_counts(card)}")
    utilization = usage["driver_utilization"]
    if utilization is not None and usage["cores_source"] == "gate":
        yield _line("  utilization", f"{utilization:.1f} % in 10s (reported by the driver)")


def _counts(card: TenantCard) -> str:
    usage = card["compute"]
    hung = ", hung" if usage["is_hung"] else ""
    waited = f"threads waited {usage['throttled_ns'] / 1e9:.1f} s"
    return (
        f"{count(usage['windows'], 'window')}, {count(usage['overruns'], 'overrun')}, "
        f"{count(usage['forced_launches'], 'forced launch', 'es')}, {waited}{hung}"
    )


def _overhead(card: TenantCard) -> str:
    return f"{count(card['contexts'], 'context')}, modules, driver overhead"


def _line(key: str, value: str) -> str:
    return printable(f"{key:<{KEY_WIDTH}}{value}")
