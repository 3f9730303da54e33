# SPDX-License-Identifier: Apache-2.0
"""What commands ask gpushared and what they show: each in transcripts.txt, as typed into a shell.

`python -m tests.unit.cli.test_transcripts` writes that file.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from click.testing import CliRunner

from gpushare.cli import gpushare
from gpushare.errors import ErrorCode
from gpushare.protocol.rows import TenantMps
from gpushare.quota.keys import POLICIES
from tests.unit.rows import GIB, tenant_card

from .conftest import CARD, STATUS, answers, in_utc, tenant
from .fake_daemon import AnsweringDaemon, Reply, refusal, rows

RECORDED: Final = Path(__file__).with_name("transcripts.txt")
MIB: Final = 1 << 20
AT: Final = 1763700000.0


class Scene(NamedTuple):
    """Commands against a gpushared; `answers` replace those of conftest.py."""

    answers: Mapping[str, list[Reply]]
    commands: tuple[str, ...]


def card(**more: Any) -> dict[str, Any]:
    return {**CARD, **more}


def of_tenant(op: str = "tenant", used: float = 3.9, **more: Any) -> Any:
    return {op: [{"ok": True, "tenant": tenant("train", used, 4, **more)}]}


UNIFIED: Final = {
    "index": 0,
    "uuid": "GPU-0",
    "model": "GB10",
    "mode": "unified",
    "health": "ok",
    "schedulable_reason": "card 0 (NVIDIA GB10): it has no memory of its own",
}
NOTED = {"notes": ["not given: video"], "warnings": ["train on card 0: work bypasses the gate"]}
NONE: Final[Any] = tenant("web", 0, 0, state="none", reason="add -e GPUSHARE_MEMORY=4GiB", pid=0)
NONE.update(cards=[], processes=[], quota={}, policy="", isolation="")
REMOTE: Final = {
    **NONE,
    "name": "vllm",
    "isolation": "remote",
    "reason": "remote server lab (10.0.0.5:14833)",
    "created": AT,
}
BURST: Final = {"burst_limit_bytes": 8 * GIB, "limit_bytes": 6 * GIB, "over_limit_bytes": 0}


def silent(gate: str) -> dict[str, Any]:
    """Return the compute of a container of which nothing is known."""
    figures = ("cores_used", "throttled")
    unknown = {figure: {"1s": None, "10s": None, "60s": None} for figure in figures}
    return {"cores_source": "", "gate": gate, **unknown}


def waiting() -> Reply:
    return {
        "ticket": "3f2a8c01",
        "state": "waiting",
        "position": 1,
        "name": "train",
        "kind": "command",
        "uid": 0,
        "pid": 4242,
        "requests": "8 GiB",
        "count": 1,
        "priority": 5,
        "since": time.time() - 185,
        "granted": 0.0,
        "cards": [],
        "reason": "no card has room for 8 GiB",
    }


def shown_status() -> Iterable[Scene]:
    """Yield scenes of `ls`, `ps`, `inspect` and `gpushare` alone."""
    yield Scene({}, ("", "ls", "ps", "inspect tra", "ps --wide"))
    yield Scene({"cards": rows(), "tenants": rows()}, ("ls", "ps", "ls --json"))
    yield Scene(
        {
            "cards": rows(
                card(mode="unused", cordoned=True, cordon_reason="ECC"),
                card(index=1, cordoned=True),
                card(index=2, health="XID 79"),
            )
        },
        ("ls", "card ls", ""),
    )
    part = {"request": "g", "card": CARD["uuid"], "memory_bytes": 40 * GIB, "cores": 80}
    claim = {"namespace": "ai", "name": "train", "devices": [part]}
    of_claims = {"claims": rows({**claim, "tenants": []}, {**claim, "tenants": ["4f1c"]})}
    yield Scene(of_claims, ("ls",))
    ends = (("NV4", 1, 1), ("PHB", 2, 5), ("NV4", 3, 1))
    links = [{"kind": kind, "index": index, "distance": far} for kind, index, far in ends]
    yield Scene({"cards": rows(card(links=links))}, ("card ls",))
    for more in ({"tenants": 0}, {"warnings": ["no CDI spec"]}):
        yield Scene({"status": [{"ok": True, **STATUS, **more}]}, ("",))
    yield Scene(
        {"cards": rows(), "status": [{"ok": True, **STATUS, "unified_cards": [UNIFIED]}]},
        ("ls", "ls --json"),
    )
    for old in ("515.65.01", "418.226.00"):
        yield Scene({"status": [{"ok": True, **STATUS, "driver_version": old}]}, ("ls",))
    yield Scene(
        {
            "tenants": rows(
                tenant("burst", 5, 4, **BURST),
                tenant("over", 3.7, 2),
                tenant("evil\x1b[2J\n", 1, 4),
                tenant("driver", 3, 4, compute={"cores_source": "driver"}, cores_got=97.0),
                *(
                    tenant(gate, 3, 4, compute=silent(gate), cores_got=None, throttled=None)
                    for gate in ("open", "closed")
                ),
                tenant("noted", 3, 4, **NOTED),
                NONE,
            ),
            "queue": rows(waiting()),
        },
        ("ps", "ps -a"),
    )
    lost = {**EVICTED, "state": "failed"}
    yield Scene(
        {
            "tenants": rows(
                tenant("until", 1, 4, ends_at=AT),
                tenant("lost", 1, 4, eviction=lost),
                tenant("back", 1, 4, eviction={**EVICTED, "state": "restoring"}),
                tenant("whole", 1, 4, isolation="exclusive", share_percent=None, mps=MPS),
            )
        },
        ("ps --wide",),
    )
    granted = {"state": "granted", "cards": [0, 1], "granted": AT + 7500, "since": AT}
    yield Scene(
        {
            "tenants": rows(),
            "queue": rows(
                {**waiting(), **granted, "count": None},
                {**waiting(), "kind": "restore", "ticket": "", "name": "", "uid": 1000},
            ),
        },
        ("queue",),
    )
    yield Scene({"tenants": rows(), "queue": rows(waiting())}, ("ps",))
    yield Scene({"tenants": rows(tenant("train", 3.9, 4), REMOTE)}, ("ps", "ps --wide"))
    stopped = [{"by": "operator", "reason": "why", "since": AT}]
    eviction = {**EVICTED, "held": True, "waits_since": AT}
    state: dict[str, Any] = {"interventions": stopped, "eviction": eviction, "mps": MPS}
    state |= {"used": 5, "ends_at": AT, **BURST, **NOTED}
    yield Scene(of_tenant(**state), ("inspect train",))
    yield Scene({"tenant": [{"ok": True, "tenant": NONE}]}, ("inspect web",))
    missing = refusal(ErrorCode.NOT_FOUND, "no room: \x1b[2Jevil 4", candidates=["\x1b[31mred"])
    yield Scene({"tenant": missing}, ("inspect train", "inspct train"))


EVICTED: Final[dict[str, Any]] = {
    "state": "evicted",
    "since": AT,
    "cause": "idle",
    "reason": "serve had no room",
    "bytes": 24 * GIB,
    "from_cards": [0],
    "held": False,
    "waits_since": None,
    "error": "",
}
MPS: Final = dict(zip(TenantMps.__annotations__, (25, True, "cgroup", "", "killed"), strict=True))
SET: Final = (
    "--memory 6GiB --memory-limit 8GiB --cores 040 --weight 3 --priority 0 "
    f"--class online --idle-after 2h --time-limit 8h --over-quota kill --policy {POLICIES[0]}"
)


def changes() -> Iterable[Scene]:
    """Yield scenes of `set` and `card`, and of commands that stop or move a container."""
    now: Any = {"policy": "burst-share", "share_percent": 40.0, "is_capped": False, "priority": 0}
    yield Scene({}, (f"set train {SET}",))
    yield Scene(of_tenant("set", **now), ("set train --cores 40",))
    over = of_tenant("set", warnings=["allocations fail until it frees 2.9 GiB"], used=5)
    yield Scene(over, ("set train --memory-limit 1GiB",))
    changed = of_tenant("set")
    changed["set"][0]["tenant"]["quota"] = {"memory": "6GiB operator", "weight": "3 operator"}
    yield Scene(changed, ("set train --memory 6GiB", "set train --reset"))
    yield Scene({}, ("set train", "set train --memory 6GiB --reset"))
    other = card(index=1, uuid="GPU-1", policy="best-effort", tenants=0)
    policies = ("", "1", CARD["uuid"][:12], "0 burst-share", "0 bs", "0 --reset", "7")
    wrong = ("--reset", "0 burst-share --reset", "0 fair")
    commands = tuple(f"card policy {words}" for words in (*policies, *wrong))
    yield Scene({"cards": rows(CARD, other)}, commands)
    yield Scene(
        {
            "card-cordon": [{"ok": True, "card": card(cordoned=True)}],
            "card-uncordon": [{"ok": True, "card": CARD}],
        },
        ("card cordon 0 --reason fan", "card cordon 0", "card uncordon 0"),
    )
    yield Scene(of_tenant("pause"), ("pause train", "pause train --reason why"))
    yield Scene(of_tenant("resume"), ("resume train",))
    stops = ("", "--signal KILL --reason why", "--timeout 0")
    yield Scene(of_tenant("stop"), tuple(f"stop train {words}" for words in stops))
    evicted = of_tenant("evict", used=0, eviction=EVICTED)
    yield Scene(evicted, ("evict train", "evict train --hold"))
    yield Scene(of_tenant("evict"), ("evict train",))
    yield Scene(of_tenant("restore"), ("restore train --reason why",))
    yield Scene(of_tenant("move"), ("move train --card 0",))
    cancelled = {"ok": True, "ticket": "3f2a8c01", "name": "train"}
    yield Scene({"queue-cancel": [cancelled]}, ("queue cancel 3f2a8c01",))


#: Of a container, by kind.
PARTS: Final = {
    "buffers": GIB,
    "pools": 2 * GIB,
    "managed": 0,
    "arrays": 0,
    "graphs": 0,
    "modules": 12 * MIB,
    "context_limits": 0,
    "external": 0,
    "contexts": 524 * MIB,
    "orphaned": 0,
    "unaccounted": 40 * MIB,
}
USED: Final = sum(PARTS.values())


def why_card(**more: Any) -> dict[str, Any]:
    return {
        **tenant_card(),
        "model": CARD["model"],
        "card_memory_bytes": CARD["memory_bytes"],
        "used_bytes": USED,
        "kinds": dict(PARTS),
        "bytes_per_context": 524 * MIB,
        "pool_cached_bytes": 1536 * MIB,
        "exported_bytes": GIB,
        "imported_bytes": 0,
        "expected_bytes": USED - 40 * MIB,
        "driver_bytes": USED,
        "drift_bytes": 40 * MIB,
        "drift_text": "the driver reports 40 MiB more than the account. It counts as unaccounted",
        "shortfall": None,
        **more,
    }


def process(**more: Any) -> dict[str, Any]:
    held = {
        "index": 0,
        "bytes": USED - 40 * MIB,
        "kinds": {part: size for part, size in PARTS.items() if size and part != "unaccounted"},
        "driver_bytes": USED,
    }
    return {
        "pid": 4242,
        "container_pid": 1,
        "name": "python",
        "accounted": True,
        "denied": 2,
        "cards": [held],
        **more,
    }


ADVICE: Final = "its memory pools keep 1.5 GiB of unused memory: torch.cuda.empty_cache() gives it"


def report(*processes: Mapping[str, Any], **more: Any) -> dict[str, list[Reply]]:
    """Return the packets of a report, and of its processes before it."""
    made = {
        "key": "0123456789abcdef",
        "id": "4f5e6d7c8b9a" + "0" * 52,
        "name": "train",
        "state": "bound",
        "reason": "",
        "isolation": "interposer",
        "idle_since": None,
        "eviction": None,
        "stale_reason": "",
        "cards": [why_card()],
        "denied_allocations": 2,
        "last_denied_allocation": {"bytes": 2 * GIB, "container_pid": 1, "seen": None},
        "advice": [ADVICE],
        "notes": [],
        "processes": [],
        **more,
    }
    return {"why": [*rows(*processes)[:-1], {"ok": True, "why": made}]}


def explained() -> Iterable[Scene]:
    """Yield scenes of `why`."""
    wide = why_card(
        kinds=dict.fromkeys(PARTS, 140 * GIB),
        used_bytes=12 * 140 * GIB,
        burst_limit_bytes=6 * GIB,
        limit_bytes=5 * GIB,
        imported_bytes=140 * GIB,
        oversubscribed_bytes=3 * GIB,
        oversubscribed_limit_bytes=8 * GIB,
    )
    widest = process(pid=4194304, container_pid=4194304, name="torch-distribut", denied=99)
    many = [process(pid=number) for number in range(1000, 1030)]
    whole = why_card(
        kinds={**dict.fromkeys(PARTS, 0), "unaccounted": 3 * GIB},
        used_bytes=3 * GIB,
        bytes_per_context=0,
        drift_text="a whole card has no account",
    )
    last = {"bytes": 2 * GIB, "container_pid": 7, "seen": AT}
    more: dict[str, Any] = {"isolation": "exclusive", "advice": [], "denied_allocations": 0}
    for found in (
        report(process()),
        report(widest, cards=[wide], idle_since=AT, stale_reason="no answer within 5 s"),
        report(*many, denied_allocations=1, last_denied_allocation=last),
        report(process(accounted=False, cards=[]), cards=[whole], **more),
        report(eviction=EVICTED, advice=[], notes=["not given: video"]),
        report(state="none", cards=[], reason="add -e GPUSHARE_MEMORY=4GiB"),
    ):
        yield Scene(found, ("why train",))


def event(kind: str, /, **more: Any) -> dict[str, Any]:
    made = {"number": 1, "time": AT, "boot_id": "b1", "generation": 1, "event": kind}
    none = {"level": "info", "key": "", "id": "", "name": "", "card": "", "fields": {}}
    return {**made, **none, **more}


def happened() -> Iterable[Scene]:
    """Yield scenes of `history`."""
    kept = {"memory_bytes": 4 << 30, "cards": [0, 1]}
    stopped = {"signal": "TERM", "timeout": 9}
    yield Scene(
        {
            "history": rows(
                event("daemon-ready", fields={"version": "0.1.0", "pid": 7}),
                event("tenant-reserved", name="train", id="f" * 64, fields=kept),
                event("tenant-hung", name="train", level="warning"),
                event("card-policy-changed", card="GPU-1", fields={"policy": "fixed-share"}),
                event("tenant-released", id="e" * 64, fields={"reason": "its process has ended"}),
                event("tenant-teleported", name="train", fields={"to": "mars", "empty": ""}),
                event("tenant-reserved", name="train", fields={"other": 1}),
                event("tenant-request-adjusted", name="a\x1b[2J", fields={"note": "x\ny"}),
                *(
                    event(kind, name="train", fields={"by": by, "reason": "why", **stopped})
                    for by in ("idle", "audit", "operator", "time-limit")
                    for kind in ("tenant-frozen", "tenant-stop-requested")
                ),
                event("daemon-stopped", boot_id="b2"),
            )
        },
        ("history",),
    )
    yield Scene({"history": rows()}, ("history train --since 90m",))
    # Two containers of one name are told apart.
    released = event("tenant-released", key="k1", id="e" * 64, name="train")
    bound = event("tenant-bound", key="k2", id="f" * 64, name="f" * 12, fields={"pid": 7})
    hung = [
        event("tenant-hung", **who)
        for who in ({"key": "k2", "name": "train"}, {"key": "k3"}, {"key": "k4", "id": "a" * 64})
    ]
    yield Scene({"history": rows(released, bound, *hung)}, ("history train",))
    wrong = ("", "1", "-1h", "1y", "h", "1h30m", "nan s")
    yield Scene({}, tuple(f"history --since={text!r}" for text in wrong))


def documented() -> Iterable[Scene]:
    """Yield a scene of `explain`, which asks nobody."""
    codes = ("no-room", "xid-79", "nvml 2", "exit-3", "tenant-frozen", "nosuch")
    yield Scene({}, tuple(f"explain {code}" for code in codes))


def refused() -> Iterable[Scene]:
    """Yield scenes of options that contradict each other, of no card, and of a reload."""
    contradictions = (
        "audit",
        "config show --namespace team --users",
        "convert - --to gpushare --in-place",
        "verify --mps --cores 30",
    )
    yield Scene({}, contradictions)
    none = {"cards": rows(), "status": [{"ok": True, **STATUS, "driver_version": ""}]}
    yield Scene(
        none, ("verify --runtime docker", "verify --runtime docker --mps", "compat ./image")
    )
    for changed in (["defaults.memory"], []):
        yield Scene({"reload": [{"ok": True, "changed": changed}]}, ("config reload",))


def dated(request: Reply) -> Reply:
    """Return the request, whose time is in seconds before now."""
    ago = {"since": round(time.time() - request["since"], -2)} if "since" in request else {}
    return {**request, **ago}


def transcripts(sent: Callable[[Any], Any] = lambda reply: reply) -> Iterable[str]:
    """Run every scene; yield commands, their requests (>), what they print, and their status.

    `sent` is what becomes of an answer of gpushared.
    """
    with tempfile.TemporaryDirectory() as folder:
        for scene in (
            *shown_status(),
            *changes(),
            *explained(),
            *happened(),
            *documented(),
            *refused(),
        ):
            path = Path(folder, "control.sock")
            daemon = AnsweringDaemon(path, sent({**answers(), **scene.answers}))
            with daemon.answering():
                for command in scene.commands:
                    daemon.requests.clear()
                    words = ["--socket", str(path), *shlex.split(command)]
                    done = CliRunner().invoke(gpushare, words, prog_name="gpushare")
                    yield f"$ gpushare {command}".rstrip()
                    yield from (f"> {json.dumps(dated(each))}" for each in daemon.requests)
                    yield from (done.stdout + done.stderr).splitlines()
                    if done.exit_code:
                        yield f"status {done.exit_code}"
                    yield ""


def recorded() -> str:
    """Return the transcripts, in UTC."""
    with in_utc():
        return "\n".join(transcripts())


def test_each_command_asks_and_shows_what_it_should() -> None:
    assert recorded() == RECORDED.read_text()


#: Texts that containers, their users and their processes choose, or an engine reports.
CHOSEN: Final = re.compile(
    "advice|candidates|command|config|container|cordon_reason|error|fields|fix|labels|model|name"
    "|namespace|node_name|notes|pods?|reason|user|value|warnings"
)


def odd(answer: Any, *, chosen: bool = False) -> Any:
    """Return the answer with half of a surrogate pair and a control code in each such text."""
    if isinstance(answer, dict):
        is_chosen = {key: chosen or bool(CHOSEN.fullmatch(key)) for key in answer}
        return {key: odd(part, chosen=is_chosen[key]) for key, part in answer.items()}
    if isinstance(answer, list | tuple):
        return [odd(part, chosen=chosen) for part in answer]
    return f"{answer}\ud800\x9b" if chosen and isinstance(answer, str) else answer


def test_no_text_that_somebody_chose_ends_a_command_or_reaches_a_terminal() -> None:
    shown = [line for line in transcripts(odd) if not line.startswith("> ")]
    assert len(shown) > 500
    assert [line for line in shown if "internal error" in line] == []
    assert [line for line in shown if not line.isprintable()] == []


if __name__ == "__main__":
    sys.exit(0 if RECORDED.write_text(recorded()) else 1)
