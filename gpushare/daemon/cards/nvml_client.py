# SPDX-License-Identifier: Apache-2.0
"""The driver, through a process of its own that calls NVML.

NVML can hang with the driver, and be replaced beneath a process that loaded it. So a worker calls
it (worker_main.py), and one thread in the daemon talks to the worker. A caller waits for that
thread until a deadline and no longer; while a question hangs, every further one fails at once, and
the last answers are stale. A worker that does not answer for several deadlines is killed, and
another one is started: later each time where that does not help.

The library is reloaded, in a new process, when that is requested (`renew`), when the driver's
version, its cards or their parts are other ones, and now and then while a card does not answer:
nothing less shows a card that was reset.

What the worker answers is validated here, and nowhere else: a figure that cannot be invalidates the
whole sample (InvalidSample), and no tenant is judged by it. What real drivers do is accepted: a
process whose memory the driver does not know, one that is listed though it has ended (its memory is
still taken), the same one in several lists.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from gpushare.daemon.cards import worker_process
from gpushare.daemon.cards.driver_client import (
    DriverError,
    DriverGeneration,
    DriverLimits,
    DriverSample,
    DriverTimeout,
    InvalidSample,
    ProcessUse,
)
from gpushare.daemon.cards.worker_process import WorkerLost, WorkerProcess
from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import Backoff, T, Task
from gpushare.daemon.placement.model import (
    NO_LINKS,
    Card,
    Link,
    Links,
    MigInstance,
)
from gpushare.protocol.rows import CardSensors, UnifiedCard

_PID_MOST: Final = 1 << 22  # Linux, include/linux/threads.h: PID_MAX_LIMIT
#: Excess of the sum over processes above the card's own figure: rounding, and memory that one
#: gave back while the driver was counting.
_SUM_SLACK_BYTES: Final = 1 << 30
_PERCENT: Final = 100
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True)
class DriverDescription:
    """The driver as its library described it when it was loaded."""

    driver_version: str
    cuda_version: str
    cards: tuple[Card, ...]
    generation: DriverGeneration
    limits: bool
    lost: tuple[str, ...] = ()  # of cards without an identity, or with unified memory: why
    unified: tuple[UnifiedCard, ...] = ()
    links: Links = NO_LINKS


@contextmanager
def _checked_format(action: str) -> Iterator[None]:
    """Have an answer in another format refused: InvalidSample, the driver `action` in it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidSample(f"the driver {action} in an unknown format: {error!r}") from error


def driver_description(answer: Mapping[str, Any]) -> DriverDescription:
    """Return the answer to `load`; InvalidSample."""
    with _checked_format("reports its cards"):
        cards = tuple(_card(card) for card in answer["cards"])
        instances = tuple(_instances(answer["cards"], cards, len(cards) + len(answer["lost"])))
        generation = DriverGeneration(
            str(answer["driver"]),
            tuple((card.index, card.uuid) for card in cards),
            _parts(answer["cards"], {}),
        )
        description = DriverDescription(
            generation.driver,
            str(answer["cuda"]),
            (*cards, *instances),
            generation,
            bool(answer["limits"]),
            lost=tuple(str(card["error"]) for card in answer["lost"]),
            unified=tuple(card["unified"] for card in answer["lost"] if "unified" in card),
            links=_links(answer),
        )
    if len({card.uuid for card in description.cards}) < len(description.cards):
        raise InvalidSample("the driver reports two cards with the same UUID")
    return description


def _links(answer: Mapping[str, Any]) -> Links:
    """Return how far the cards are from each other; unknown where the answer has another format.

    Only the quality of a placement depends on it, so no driver is refused for it.
    """
    try:
        between = {
            frozenset((str(one), str(other))): Link(str(kind), int(distance))
            for one, other, kind, distance in answer["links"]
        }
        return Links(between, {str(uuid): int(node) for uuid, node in answer["nodes"].items()})
    except (KeyError, TypeError, ValueError, AttributeError):
        return NO_LINKS


def driver_sample(answer: Mapping[str, Any], of: DriverDescription) -> DriverSample:
    """Return a look at the cards `of` a loaded library; InvalidSample.

    Its generation is of what is there now: where that is another one, the caller loads anew.
    """
    taken_ns = time.monotonic_ns()
    uses: dict[str, tuple[ProcessUse, ...]] = {}
    health: dict[str, str] = {}
    busy: dict[str, int] = {}
    used: dict[str, int] = {}
    modes: dict[str, str] = {}
    parts = dict(of.generation.parts)
    with _checked_format("sent a response"):
        cards = [card for card in answer["cards"] if card["uuid"]]
        for card in cards:
            uuid = str(card["uuid"])
            if "error" in card:
                health |= dict.fromkeys((uuid, *parts.get(uuid, ())), str(card["error"]))
                continue
            for part in card["instances"]:
                part_uuid = str(part["uuid"])
                uses[part_uuid], used[part_uuid] = _uses(part), int(part["used"])
            if card["instances"]:
                uses[uuid] = ()  # its processes are those of the instances
                continue
            uses[uuid], used[uuid] = _uses(card), int(card["used"])
            modes[uuid] = str(card["mode"])
            percent = card.get("busy")
            if isinstance(percent, int) and 0 <= percent <= _PERCENT:
                busy[uuid] = percent
        generation = DriverGeneration(
            str(answer["driver"]),
            tuple((int(card["index"]), str(card["uuid"])) for card in cards),
            _parts(cards, parts),
            of.generation.loads,
        )
    return DriverSample(taken_ns, uses, health, busy, generation, used=used, compute_modes=modes)


def card_sensors(answer: Mapping[str, Any]) -> Mapping[str, CardSensors]:
    """Return the sensors by uuid, without the figures that cannot be; none in another format.

    No tenant is judged by them.
    """
    try:
        return {
            str(uuid): cast(
                CardSensors,
                {
                    name: figure
                    for name, figure in figures.items()
                    if name in CardSensors.__annotations__
                    and type(figure) is int
                    and 0 <= figure <= (_PERCENT if name.endswith("_percent") else _MOST)
                },
            )
            for uuid, figures in answer["sensors"].items()
        }
    except (AttributeError, KeyError):
        return {}


def new_xids(answer: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Return uuid and number of each XID that has come; InvalidSample."""
    with _checked_format("reports XIDs"):
        return tuple((str(uuid), int(number)) for uuid, number in answer["xids"])


def _parts(
    cards: Sequence[Mapping[str, Any]], known: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the parts of each card under MIG; one that does not answer has what is `known`."""
    parts = {}
    for card in cards:
        uuid = str(card["uuid"])
        if "error" in card:
            parts[uuid] = known.get(uuid)
        elif card["parts"] is not None:
            parts[uuid] = tuple(str(part) for part in card["parts"])
    return tuple((uuid, listed) for uuid, listed in parts.items() if listed is not None)


def _card(reported: Mapping[str, Any]) -> Card:
    capability = reported["capability"]
    return Card(
        index=int(reported["index"]),
        uuid=str(reported["uuid"]),
        model=str(reported["model"]).removeprefix("NVIDIA "),
        name=str(reported["model"]),
        bus_id=str(reported["bus_id"]),
        memory_bytes=int(reported["memory"]),
        minor=int(reported["minor"]),
        datacenter=bool(reported["datacenter"]),
        brand=str(reported["brand"]),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        is_divided=bool(reported["instances"]),
    )


def _instances(
    answers: Sequence[Mapping[str, Any]], cards: Sequence[Card], first: int
) -> Iterator[Card]:
    """Yield the MIG instances of all cards, numbered from `first`; what is not said is the card's.

    The driver has no sensors of an instance, and no bus has its address.
    """
    parts = (
        (card, part)
        for card, answer in zip(cards, answers, strict=True)
        for part in answer["instances"]
    )
    for index, (card, part) in enumerate(parts, first):
        yield replace(
            card,
            index=index,
            uuid=str(part["uuid"]),
            model=str(part["model"]).removeprefix("NVIDIA "),
            name=str(part["model"]),
            memory_bytes=int(part["memory"]),
            is_divided=False,
            instance=MigInstance(
                card.uuid,
                card.index,
                int(part["number"]),
                int(part["gpu_instance"]),
                int(part["compute_instance"]),
            ),
        )


def _uses(reported: Mapping[str, Any]) -> tuple[ProcessUse, ...]:
    """Return what each process holds; InvalidSample where that cannot be."""
    name = f"card {reported['index']}"
    total, used = int(reported["total"]), int(reported["used"])
    if not 0 <= used <= total:
        raise InvalidSample(f"{name}: {used} bytes of {total} are used")
    lists = [_held(reported[kind], name, total) for kind in ("compute", "graphics", "mps")]
    listed_shares = reported["shares"]
    shares = {
        int(pid): [share if 0 <= int(share) <= _PERCENT else None for share in (kernels, *codecs)]
        for pid, kernels, *codecs in listed_shares or ()
    }
    held: dict[int, int | None] = {}
    for listed in lists:
        for pid, size in listed.items():
            before = held.get(pid)
            # In several lists with the same figure, or with what it took between two of them.
            held[pid] = size if before is None else max(before, size or 0)
    together = sum(size or 0 for size in held.values())
    if together > used + _SUM_SLACK_BYTES:
        raise InvalidSample(f"{name}: its processes hold {together} bytes, and it {used}")
    unlisted = [None if listed_shares is None else 0] * 3
    uses = []
    for pid, size in sorted(held.items()):
        kernels, encoder, decoder = shares.get(pid, unlisted)
        uses.append(ProcessUse(pid, size, kernels, pid in lists[-1], encoder, decoder))
    return tuple(uses)


def _held(records: Any, name: str, total: int) -> dict[int, int | None]:
    """Return the bytes by pid of one list; a process in several parts of a card holds their sum."""
    by_place: dict[tuple[int, int | None], int | None] = {}
    for pid, size, part in records:
        if not 0 < pid <= _PID_MOST:
            raise InvalidSample(f"{name}: there is no process {pid}")
        if size is not None and not 0 <= size <= total:
            raise InvalidSample(f"{name}: process {pid} holds {size} bytes of {total}")
        if by_place.get((pid, part), size) != size:
            raise InvalidSample(
                f"{name}: process {pid} is listed with {by_place[pid, part]} bytes and with {size}"
            )
        by_place[pid, part] = size
    held: dict[int, int | None] = {}
    for (pid, _), size in by_place.items():
        before = held.get(pid, 0)
        held[pid] = None if size is None or before is None else before + size
    return held


#: A first nvmlInit without persistence mode takes seconds per card: it may come late once.
_PATIENCE_DEADLINES: Final = 4
_FIRST_WAIT_SECONDS: Final = 0.25
_LONGEST_WAIT_SECONDS: Final = 30.0
_STEADY_SECONDS: Final = 10.0
#: Between attempts to see whether a card that does not answer was reset.
_AGAIN_SECONDS: Final = 10.0
_LONGEST_AGAIN_SECONDS: Final = 320.0

_NOTHING: Final = DriverDescription("", "", (), DriverGeneration(), limits=False)


class Nvml:
    """NVML as the library at `library`; nothing is known of it before the first `open`.

    `env` is set in the worker first: a simulated driver finds its device by it. `deadline` is in
    seconds, for each question. For any thread.
    """

    def __init__(self, library: Path, env: Mapping[str, str], deadline: float) -> None:
        self.library = library
        self._env = dict(env)
        self._deadline = deadline
        self._questions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._hanging: Task[Any] | None = None
        #: Replaced, never changed; links and versions are of when the library was loaded.
        self.loaded = _NOTHING
        self._vanished: tuple[Card, ...] = ()
        self._no_limits = False
        self._released = ""  # why no worker may hold the driver
        # All below is the thread's.
        self._worker: WorkerProcess | None = None
        self._loads = 0
        self._backoff = Backoff(
            _FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS, _STEADY_SECONDS, at_once=True
        )
        self._xids: tuple[tuple[str, int], ...] = ()  # not handed on yet
        self._sensors: Mapping[str, CardSensors] = {}  # by uuid, as last read
        self._sampled: DriverSample | None = None  # the last, if it was read
        self._sampled_of: object = None  # which library it was
        self._unhealthy = False
        self._again_seconds = _AGAIN_SECONDS
        self._not_before = 0.0
        self._why = ""
        threading.Thread(target=self._serve, name="driver", daemon=True).start()

    @property
    def driver_version(self) -> str:
        """As the driver says it."""
        return self.loaded.driver_version

    @property
    def has_limits(self) -> bool:
        """Whether it can limit the memory of a cgroup."""
        return self.loaded.limits and not self._no_limits

    def open(self) -> None:
        """Have the library loaded; DriverTimeout where it is not yet: asking again waits on."""
        self._ask(self._ready)

    def afterwards(self, function: Callable[[], None]) -> None:
        """Have `function`, which takes no time, called once what hangs now has come to an end."""
        self._questions.put(Task(function).run)

    def renew(self, library: Path, env: Mapping[str, str]) -> None:
        """Reload the library from its current path."""
        self._ask(lambda: self._renew(library, env))

    def release(self, why: str) -> None:
        """Let go of the driver, and do not load it again while there is a reason `why`."""
        if why != self._released:
            self._released = why
            if why:
                self._questions.put(self._let_go)

    def cards(self) -> tuple[Card, ...]:
        """Return the cards, and behind them those that were there and are not listed any more."""
        return self.loaded.cards + self._vanished

    def sample(self, *, brief: bool = False) -> DriverSample:
        """Return what each process takes of each card; `brief`: see nvml_calls."""
        return self._ask(lambda: self._sample(brief=brief))

    def figures(self) -> DriverSample:
        """Return the same without XIDs, which are the next sample's."""
        return self._ask(lambda: self._sample(brief=False, xids=False))

    def set_limits(self, uuid: str, cgroup: Path, limits: DriverLimits) -> None:
        """Limit what a cgroup has of a card; DriverError where the driver does not."""
        arguments = {"uuid": uuid, "cgroup": os.fsdecode(cgroup), **vars(limits)}
        self._ask(lambda: self._call("set_limits", arguments))

    def limits(self, uuid: str, cgroup: Path) -> DriverLimits:
        """Return what a cgroup may have of a card."""
        arguments = {"uuid": uuid, "cgroup": os.fsdecode(cgroup)}
        answer = self._ask(lambda: self._call("limits", arguments))
        with _checked_format("reports limits"):
            return DriverLimits(int(answer["soft"]), int(answer["hard"]))

    def close(self) -> None:
        """End the worker; no question may follow."""
        self._questions.put(None)

    def _ask(self, function: Callable[[], T]) -> T:
        if self._hanging is not None and not self._hanging.wait(0):
            raise DriverTimeout("the NVIDIA driver is not responding")
        question = Task(function)
        self._questions.put(question.run)
        if not question.wait(self._deadline):
            self._hanging = question
            raise DriverTimeout(f"the NVIDIA driver did not respond within {self._deadline:g} s")
        return question.result()

    def _serve(self) -> None:
        while (question := self._questions.get()) is not None:
            question()
        self._let_go()

    # The rest is that thread's.

    def _call(self, call: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the worker; one that is lost or hangs is replaced at the next call."""
        self._ready()
        return self._call_worker(call, arguments)

    def _call_worker(self, call: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        assert self._worker is not None
        try:
            answer = self._worker.ask(call, dict(arguments), self._deadline * _PATIENCE_DEADLINES)
        except (WorkerLost, DriverTimeout) as error:
            log("driver-worker-lost", "warning", pid=self._worker.pid, call=call, reason=str(error))
            self._loads += 1
            self._fail(str(error))
            raise
        if "error" in answer:
            if call == "look":
                # The library as a whole: DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH, UNINITIALIZED.
                self._loads += 1
                self._xids += self._rest_of(self._worker)
                self._fail(str(answer["error"]))
            if answer.get("no_limits") and call in {"set_limits", "limits"}:
                self._no_limits = True  # nor for the next tenant
            raise DriverError(str(answer["error"]))
        return answer

    def _fail(self, why: str) -> None:
        """Let go of the worker, and of another one for a while where that has just been tried."""
        self._not_before = time.monotonic() + self._backoff.wait_seconds()
        self._why = why
        self._let_go()

    def _let_go(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _renew(self, library: Path, env: Mapping[str, str]) -> None:
        self.library, self._env = library, dict(env)
        self._not_before = 0.0
        if self._worker is None:
            self._load()
        else:
            self._replace(self._worker)

    def _ready(self) -> None:
        """See that there is a worker that has loaded the library."""
        if self._released:
            raise DriverError(self._released)
        if self._worker is not None:
            if self._unhealthy and time.monotonic() - self._backoff.since > self._again_seconds:
                self._replace(self._worker, keep=True)
            return
        if time.monotonic() < self._not_before:
            raise DriverError(f"{self._why}; gpushared will retry soon")
        self._load()

    def _replace(self, before: WorkerProcess, *, keep: bool = False) -> None:
        """Reload the library in another worker; `keep` the current one where that fails.

        The other one listens for XIDs before the current one ends, so that none falls between.
        """
        self._worker = None
        try:
            after = self._load()
        except DriverError:
            if not keep:
                self._xids += self._rest_of(before)
                before.end()
                raise
            self._worker, self._not_before = before, 0.0
        else:
            # Both are told what comes while both listen.
            told, told_too = Counter(self._rest_of(before)), Counter(self._rest_of(after))
            self._xids += tuple((told | told_too).elements())
            before.end()
        if keep:
            # Until it has helped: a card that is lost may make each loading slow.
            self._again_seconds = min(2 * self._again_seconds, _LONGEST_AGAIN_SECONDS)

    def _rest_of(self, worker: WorkerProcess) -> tuple[tuple[str, int], ...]:
        """Return the XIDs that it has not told; none where it does not respond."""
        try:
            return new_xids(worker.ask("xids", {}, self._deadline))
        except (WorkerLost, DriverTimeout, InvalidSample):
            return ()

    def _load(self) -> WorkerProcess:
        """Start a worker and have it load the library; its answer describes the driver."""
        worker = worker_process.start_worker(worker_process.worker_command(), "NVML worker")
        self._worker = worker
        self._backoff.note_start()
        arguments = {"library": str(self.library), "env": self._env}
        try:
            loaded = driver_description(self._call_worker("load", arguments))
        except (WorkerLost, DriverTimeout):
            raise
        except DriverError as error:
            self._fail(str(error))
            raise
        listed = {card.uuid for card in loaded.cards}
        # An instance ends with its card's layout, and no tool destroys one that is in use.
        gone = [card for card in self.cards() if card.uuid not in listed and card.instance is None]
        # The driver renumbers the others: their numbers are beyond.
        self._vanished = tuple(
            replace(card, index=len(loaded.cards) + number) for number, card in enumerate(gone)
        )
        self.loaded = replace(loaded, generation=replace(loaded.generation, loads=self._loads))
        self._no_limits = False
        self._unhealthy = bool(gone or loaded.lost)
        log("driver-worker-started", pid=worker.pid, driver=loaded.driver_version)
        return worker

    def _sample(self, *, brief: bool, xids: bool = True) -> DriverSample:
        self._ready()
        try:
            sample = self._look(brief=brief)
            if sample.generation != self.loaded.generation:
                assert self._worker is not None
                self._replace(self._worker)
                sample = self._look()
        except InvalidSample:
            self._unhealthy = True
            raise
        self._unhealthy = bool(sample.health or self._vanished or self.loaded.lost)
        if not self._unhealthy:
            self._again_seconds = _AGAIN_SECONDS
        lost = "; ".join(self.loaded.lost)
        health = {
            card.uuid: f"no longer listed by the driver{lost and ': '}{lost}"
            for card in self._vanished
        }
        told = self._xids if xids else ()
        self._xids = self._xids[len(told) :]
        return replace(sample, health={**sample.health, **health}, xids=told, sensors=self._sensors)

    def _look(self, *, brief: bool = False) -> DriverSample:
        last, self._sampled = self._sampled, None
        if self._sampled_of is not self.loaded:
            last = None
        answer = self._call_worker("look", {"known": last is not None, "brief": brief})
        # They are reported once, whatever the rest of the answer is worth.
        self._xids += new_xids(answer)
        if "sensors" in answer:
            self._sensors = card_sensors(answer)
        if last is not None and "cards" not in answer:  # nothing new: comparing both costs nothing
            self._sampled = replace(last, taken_ns=time.monotonic_ns())
        else:
            self._sampled = driver_sample(answer, self.loaded)
            self._sampled_of = self.loaded
        return self._sampled
