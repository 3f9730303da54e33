# SPDX-License-Identifier: Apache-2.0
"""Records what happens one after another on a node: the queue, claims, evictions, reloads.

After each step the reply is recorded, and all that can be seen of the node once it has settled.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final
from unittest.mock import patch

from gpushare.protocol.kubernetes import CLAIM_MOUNT
from gpushare.verify.runners import ProbeTenant
from tests.guard import generate, masks, views
from tests.guard.generate import GeneratedContainer
from tests.guard.nodes import ROOT, RecordedDaemon, stack_of
from tests.stack.bundle import Bundle

_GIB: Final = 1 << 30
_CARDS: Final = 2
#: gpushared looks at what runs so often; a node has settled when nothing changed for longer.
_OFTEN: Final = {"sample_interval_seconds": 0.1, "reconcile_interval_seconds": 0.2}
_SETTLED_SECONDS: Final = 0.7
_WAIT_SECONDS: Final = 15.0


class Story:
    """A node with settings of its own, and what was recorded of it."""

    def __init__(self, settings: Mapping[str, Any], exits: ExitStack) -> None:
        self.stack = exits.enter_context(stack_of(_CARDS))
        (ROOT / "cdi").mkdir()
        self.node = RecordedDaemon(self.stack, {"timing": _OFTEN, **settings})
        exits.callback(self.node.close)
        self._exits = exits
        self.ask = self.node.daemon
        self.steps: list[Any] = []
        self.uuids = [str(row["uuid"]) for row in self.ask.cards()["rows"]]
        self._keys: dict[str, tuple[str, str]] = {}

    def note(self, label: str, reply: Any, *, shown: tuple[str, ...] | None = None) -> None:
        """Record a step; with `shown`, also what the commands print, of the containers in it."""
        if isinstance(reply, dict) and isinstance(reply.get("tenant"), dict):
            reply["tenant"].pop("processes", None)  # sampled before the step, or after
        step = {"reply": reply, **self._settled()}
        if shown is not None:
            step |= {"shown": views.shown(self.stack, *shown), "served": views.metrics(self.stack)}
        known = masks.of_stack(step, self.stack, self.node.names)
        self.steps.append([label, views.in_order(known)])

    def _settled(self) -> dict[str, Any]:
        before, since, deadline = None, 0.0, time.monotonic() + _WAIT_SECONDS
        while True:
            seen = {
                **self.node.state(),
                "queue": self.ask.queue(),
                "claims": self.ask.claims(),
                "metrics": self.ask.metrics(),
                "files": views.ledger(self.stack.root / "run"),
                "cdi": views.texts(self.stack.root / "cdi"),
            }
            now, here = masks.of_moment(seen), time.monotonic()
            if now != before:
                before, since = now, here
            elif here - since > _SETTLED_SECONDS or here > deadline:
                return seen
            time.sleep(0.05)

    # --- what happens ---

    def opens(self, name: str, memory: str, **more: str) -> None:
        """`gpushare run` asks for its part, in its turn where it has a ticket."""
        ticket = {"ticket": more.pop("ticket")} if "ticket" in more else {}
        quota = {"memory": memory, **more}
        reply = self.ask.open(quota, name, os.getpid(), rootless=False, **ticket)
        if reply["ok"]:
            self._keys[name] = str(reply["key"]), str(reply["id"])
            self.node.names |= {
                reply["key"]: f"<key of {name}>",
                reply["id"]: f"<id of {name}>",
                reply["id"][:12]: f"<short id of {name}>",
            }
            self.node.bind(*self._keys[name])
        self.note(f"open {name}", reply)

    def releases(self, name: str) -> None:
        self.note(f"release {name}", self.node.end_if_bound(*self._keys.pop(name, ("", ""))))

    def takes(self, name: str, memory: str, **more: Any) -> tuple[str, str]:
        """`gpushare run --wait` joins the queue; return the ticket and its secret."""
        quota = {"memory": memory, **more.pop("quota", {})}
        reply = self.ask.take(name, quota, **more)
        if reply["ok"]:
            self.node.names |= {
                reply["ticket"]: f"<ticket of {name}>",
                reply["secret"]: f"<secret of {name}>",
                hashlib.sha256(reply["secret"].encode()).hexdigest(): f"<digest of {name}>",
            }
        self.note(f"take {name}", reply)
        found = str(reply.get("ticket", "")), str(reply.get("secret", ""))
        self.polls(name, *found)
        return found

    def polls(self, name: str, ticket: str, secret: str) -> None:
        if ticket:
            self.steps.append([f"poll {name}", {"reply": self.ask.poll(ticket, secret)}])

    def is_killed(self) -> None:
        """gpushared is killed, and starts again."""
        self.note("killed", self.node.restart(signal.SIGKILL))

    def reloads(self, label: str, **sections: Any) -> None:
        """gpushare.yaml has other values, or, as None, none."""
        with patch.object(type(self.stack), "is_serving", False):
            self.stack.configure(**sections)
        self.note(f"reload {label}", self.ask.reload())

    def starts(self, name: str, **quota: str) -> tuple[Bundle, ProbeTenant]:
        """A container of an engine starts, with a program that uses its card."""
        with patch("tests.stack.bundle.secrets.token_hex", lambda _: name):
            bundle = Bundle(self.stack, quota=quota)
        tenant = self._exits.enter_context(bundle.started())
        self.note(f"start {name}", None)
        return bundle, tenant

    def tells(self, tenant: ProbeTenant, *commands: str) -> None:
        """A program uses its card."""
        for command in commands:
            self.note(command, tenant.ask(command))


def record(name: str) -> dict[str, Any]:
    """Record one of STORIES, on a node of its own."""
    settings, happens = STORIES[name]
    with ExitStack() as exits:
        story = Story(settings, exits)
        happens(story)
        told = {"steps": story.steps, "events": story.node.events_by_tenant()}
        recorded: dict[str, Any] = masks.of_stack(told, story.stack, story.node.names)
        return recorded


def _queue(story: Story) -> None:
    for card in range(_CARDS):
        story.opens(f"first-{card}", "100GiB", devices=str(card), cores="30")
    big = story.takes("big", "100GiB", quota={"cores": "50"})
    story.opens("small-1", "4GiB", devices="0")
    story.opens("small-2", "4GiB", devices="0")
    granted = story.takes("granted", "2GiB", quota={"cores": "10", "priority": "3"})
    story.polls("big", *big)
    story.is_killed()
    story.polls("granted", *granted)
    urgent = story.takes("urgent", "120GiB", wait_seconds=3600, quota={"priority": "1"})
    story.note("shown", None, shown=("first-0",))
    story.opens("granted", "3GiB", ticket=granted[1])
    story.opens("granted", "2GiB", cores="10", ticket=granted[1])
    story.polls("granted", *granted)
    story.note("cancel urgent", story.ask.cancel(urgent[0]))
    story.polls("urgent", *urgent)
    story.note("cancel nobody", story.ask.cancel("00000000"))
    story.takes("never", "500GiB")
    story.takes("wrong", "4Q")
    more = {"kind": "container", "variables": {"GPUSHARE_CORES": "20"}, "cards": "all"}
    other = story.takes("engine", "100GiB", **more, annotations={"gpushare.io/priority": "2"})
    story.note("cancel engine", story.ask.cancel(other[0]))
    waits = GeneratedContainer("waits", env={"GPUSHARE_MEMORY": "100GiB", "GPUSHARE_WAIT": "1s"})
    story.note("create waits", story.node.create(waits))
    story.reloads("tickets", queue={"max_tickets": 2})
    story.opens("small-3", "1GiB", cores="5")
    story.opens("withheld", "1GiB", devices="1")
    story.takes("second", "100GiB")
    story.takes("third", "100GiB")
    story.releases("first-0")
    story.polls("big", *big)
    story.is_killed()
    story.opens("big", "100GiB", cores="50", ticket=big[1])
    story.releases("big")
    story.releases("granted")


def _claims(story: Story) -> None:
    def device(card: int, gib: int, cores: int = 0) -> dict[str, Any]:
        part = {"card": story.uuids[card], "memory_bytes": gib * _GIB, "cores": cores}
        return {"request": f"gpu-{card}", "share": f"share-{card}", **part}

    def prepare(claim: str, *devices: Any, pods: tuple[str, ...] = ("pod-a",), **keys: str) -> None:
        story.note(f"prepare {claim}", story.ask.prepare(claim, devices, *pods, **keys))

    def start(name: str, claim: str, pod: str, **asked: str) -> tuple[str, str]:
        source = str(story.stack.root / "run/claims" / claim)
        mount = {"destination": f"{CLAIM_MOUNT}/{claim}", "type": "bind", "source": source}
        keys = {f"gpushare.io/{key}": text for key, text in asked.items()}
        keys["io.kubernetes.cri.sandbox-uid"] = pod
        changes = {"mounts": [mount]}
        case = GeneratedContainer(name, keys, pod=pod, container=name, changes=changes)
        found = story.node.make(case)
        story.note(f"create {name}", found)
        if found["reply"]["ok"]:
            key = str(found["reply"]["key"])
            story.note(f"bind {name}", story.node.bind(key, case.identity))
            return key, case.identity
        return "", ""

    prepare("claim-1", device(0, 8, 40))
    prepare(
        "claim-2", device(0, 16), device(1, 4, 20), pods=("pod-a", "pod-b"), policy="best-effort"
    )
    prepare("claim-1", device(0, 8, 40), pods=("pod-a", "pod-c"))
    prepare("claim-1", device(0, 9, 40))
    prepare("claim-3", device(1, 200))
    prepare("claim-4", {**device(1, 1), "card": "GPU-none"})
    one = start("one", "claim-1", "pod-a", memory="6GiB")
    start("two", "claim-1", "pod-a", memory="2GiB")
    start("three", "claim-1", "pod-a", memory="1GiB")
    start("other", "claim-1", "pod-x")
    both = start("both", "claim-2", "pod-b")
    story.note("pods", story.ask.set_pods("claim-2", "pod-b", "pod-d"))
    story.is_killed()
    story.note("shown", None, shown=("case-one",))
    story.note("end one", story.node.end_if_bound(*one))
    start("again", "claim-1", "pod-c", memory="4GiB")
    story.note("unprepare", story.ask.unprepare("claim-1"))
    story.note("pods of none", story.ask.set_pods("claim-1", "pod-a"))
    for file in (ROOT / "cdi").glob("*claim-2*"):  # written again by the next daemon
        file.unlink()
    story.is_killed()
    story.note("end both", story.node.end_if_bound(*both))
    story.note("unprepare", story.ask.unprepare("claim-2"))
    story.note("unprepare none", story.ask.unprepare("claim-9"))


def _evictions(story: Story) -> None:
    ask = story.ask
    train, program = story.starts("train", memory="100GiB", devices="0", cores="30")
    story.tells(program, f"alloc {64 << 20}", "write 7")
    story.note("evict", ask.evict(train.id))
    story.note("evict again", ask.evict(train.id))
    story.is_killed()
    other, busy = story.starts("other", memory="100GiB", devices="0")
    story.note("restore without room", ask.restore(train.id))
    story.note("shown", None, shown=(train.id, other.id))
    busy.close()
    story.note("other has ended", None)
    story.note("restore", ask.restore(train.id))
    story.note("restore again", ask.restore(train.id))
    story.tells(program, "check 7")
    story.note("evict and hold", ask.evict(train.id, hold=True))
    story.is_killed()
    story.note("restore held", ask.restore(train.id))
    story.note("move", ask.move(train.id, "0"))
    story.tells(program, "check 7", "info")
    story.note("move again", ask.move(train.id, "0"))
    story.note("move nowhere", ask.move(train.id, "7"))
    story.is_killed()
    story.note("evict nobody", ask.evict("nobody"))
    story.note("set", ask.set(train.id, {"memory": "50GiB"}))
    story.note("evict", ask.evict(train.id))
    program.close()
    story.note("train has ended", None)


def _managed(story: Story) -> None:
    managed = "alloc cuMemAllocManaged"
    made, program = story.starts("managed", memory="4GiB", oversubscribe="host:8GiB")
    story.tells(program, f"{managed} {13 * _GIB}", f"{managed} {10 * _GIB}", f"alloc {2 * _GIB}")
    story.tells(program, f"alloc {_GIB}")
    story.note("why", story.ask.why(made.id), shown=(made.id,))
    story.is_killed()
    story.note("why", story.ask.why(made.id))
    story.reloads("less", oversubscribe={"host_memory": "12GiB", "per_container": "6GiB"})
    for name, beyond in (("more", "host"), ("most", "host:7GiB")):
        env = {"GPUSHARE_MEMORY": "1GiB", "GPUSHARE_OVERSUBSCRIBE": beyond}
        story.note(f"create {name}", story.node.create(GeneratedContainer(name, env=env)))
    story.tells(program, "free", f"{managed} {12 * _GIB}")
    program.close()
    story.note("ended", None)


#: What gpushare.yaml says one after another, and None: no longer.
_RELOADED: Final[Mapping[str, Mapping[str, Any]]] = {
    "amounts": {"system_reserved": "2GiB", "max_tenants": 3, "labels": ["team"]},
    "defaults": {"defaults": {"memory": "3GiB", "cores": 15, "placement": "spread"}},
    "ceilings": {"max_per_request": {"memory": "8GiB", "cores": 40}, "trust": {"env": "reduce"}},
    "wrong": {"max_tenants": "many"},
    "right": {"max_tenants": 4, "max_per_request": None, "trust": None},
    "cards": {"cards": {"0": {"allowed_mode": "shared"}, "1": {"allowed_mode": "exclusive"}}},
    "users": {"users": {"*": {"max_per_node": {"memory": "16GiB"}}}},
    "namespaces": {"namespaces": {"team": {"defaults": {"memory": "1GiB"}}}, "cards": None},
    "restart": {"history": {"retention_days": 3}},
    "audit": {"audit": {"unallocated": "warn"}, "prices": {"currency": "EUR", "gpu_hour": 2}},
    "dialects": {"dialects": {"mode": "strict", "accept": ["hami"]}},
    "nothing": {"defaults": None, "users": None, "namespaces": None, "dialects": None},
}


def _reloads(story: Story) -> None:
    drawn = iter(list(generate.cases(9000, 40)))
    for label, sections in _RELOADED.items():
        story.reloads(label, **sections)
        found = {case.name: story.node.run(case) for case, _ in zip(drawn, "123", strict=False)}
        story.opens(f"run-{label}", "1GiB")
        story.note("requests", found)
    for value in ("exclusive", "none such", None):
        story.note("node setting", story.ask.node_setting("cards.allowed_mode", value))
    story.is_killed()
    story.note("shown", None, shown=("run-amounts",))


STORIES: Final[Mapping[str, tuple[Mapping[str, Any], Callable[[Story], None]]]] = {
    "queue": ({}, _queue),
    "claims": ({"kubernetes": {"mode": "dra", "cdi_dir": str(ROOT / "cdi")}}, _claims),
    "evictions": ({"evict": {"moves": True}}, _evictions),
    "managed": ({"oversubscribe": {"host_memory": "32GiB", "per_container": "16GiB"}}, _managed),
    "reloads": ({"timing": _OFTEN | {"reconcile_interval_seconds": 600}}, _reloads),
}
