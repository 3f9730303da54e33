# SPDX-License-Identifier: Apache-2.0
"""The operations of the control socket: one table, from which client, checks and reference come.

An operation is declared once, as a method: its parameters are the request's fields, and each type
says how the daemon checks the field. A field with a default is optional; null is as good as none.
The decorator says who may ask, on which of the daemon's threads it runs, and what is returned of
the reply. The client inherits the methods (gpushare/client.py). The daemon has a function for each
row (gpushare/daemon/service/operations.py).
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

from gpushare import protocol
from gpushare.protocol import kubernetes
from gpushare.protocol.kubernetes import ClaimDevice
from gpushare.protocol.queue import QueueEntry, Ticket, TicketStatus
from gpushare.protocol.rows import CardRow, TenantStatus
from gpushare.quota.errors import quoted


class MalformedRequest(ValueError):
    """A field that is missing or is not what it has to be."""


# --- how a field is checked ---

#: Returns a field's value, by the field's name and what the request has; MalformedRequest.
Check: TypeAlias = Callable[[str, Any], Any]


def _check(fault: str, fits: Callable[[Any], bool]) -> Check:
    """Return the check of a value that `fits`; `fault` says what it is not."""

    def check(name: str, value: Any) -> Any:
        if not fits(value):
            raise MalformedRequest(f"{name} {fault}")
        return value

    return check


def text(most: int = 4096) -> Check:
    """Check a text of 1 to `most` characters."""
    return _check(
        f"is not a string of 1 to {most} characters",
        lambda value: isinstance(value, str) and 0 < len(value) <= most and "\0" not in value,
    )


def matching(pattern: str) -> Check:
    """Check a text that is all `pattern`."""

    def check(name: str, value: Any) -> str:
        if not re.fullmatch(pattern, text()(name, value), re.ASCII):
            raise MalformedRequest(f"{name} {quoted(value)} does not match {pattern}")
        return cast("str", value)

    return check


def one_of(*choices: str) -> Check:
    """Check a text that is one of `choices`."""
    return _check(f"is not one of {', '.join(choices)}", lambda value: value in choices)


def number(low: int, high: int) -> Check:
    """Check a whole number."""
    return _check(
        f"is not a whole number from {low} to {high}",
        lambda value: type(value) is int and low <= value <= high,
    )


def texts(most: int, letters: int = 4096) -> Check:
    """Check an object of at most `most` texts."""
    return _check(
        f"is not an object of strings: at most {most}, of at most {letters} characters",
        lambda value: (
            isinstance(value, dict)
            and len(value) <= most
            and all(isinstance(one, str) and len(one) <= letters for one in value.values())
        ),
    )


def devices(name: str, value: Any) -> list[ClaimDevice]:
    """Check the devices of a claim."""
    if not isinstance(value, list) or not 1 <= len(value) <= kubernetes.CLAIM_DEVICES_MAX:
        raise MalformedRequest(f"{name} is not a list of 1 to {kubernetes.CLAIM_DEVICES_MAX}")
    if not all(isinstance(fields, dict) for fields in value):
        raise MalformedRequest(f"{name} has an entry that is not an object")
    return [
        ClaimDevice(
            request=text(253)("request", fields.get("request")),
            card=text(96)("card", fields.get("card")),
            memory_bytes=number(1, MOST_BYTES)("memory_bytes", fields.get("memory_bytes")),
            cores=number(0, 100)("cores", fields.get("cores")),
            share=text(253)("share", fields["share"]) if fields.get("share") else "",
        )
        for fields in value
    ]


MOST_BYTES: Final = 1 << 50  # of a card
MOST_NUMBER: Final = 1 << 53  # that JSON has a number for everywhere
_UID: Final = r"[0-9A-Za-z][0-9A-Za-z-]{0,62}"
_NO_TEXTS: Final[Mapping[str, str]] = MappingProxyType({})

Name = Annotated[str, text()]  # of a tenant, or of what is not checked further
Flag = Annotated[bool, _check("is neither true nor false", lambda value: isinstance(value, bool))]
Card = Annotated[str, text(96)]  # its index or UUID
Reason = Annotated[str, text(256)]
Setting = Annotated[str, text(64)]
Key = Annotated[str, matching(r"[0-9a-f]{16}")]  # of a tenant
ContainerId = Annotated[str, matching(r"[A-Za-z0-9_][\w+.-]{0,127}")]
Pid = Annotated[int, number(1, 1 << 22)]  # PID_MAX_LIMIT
Texts = Annotated[Mapping[str, str], texts(64)]
TicketId = Annotated[str, matching(r"[0-9a-f]{8}")]
Secret = Annotated[str, matching(r"[0-9a-f]{32}")]
Uid = Annotated[str, matching(_UID)]  # of a claim
#: The name of a namespace, or of a claim (RFC 1123).
DnsName = Annotated[str, matching(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")]
Pods = Annotated[
    Sequence[str],
    _check(
        f"is not a list of at most {kubernetes.CLAIM_PODS_MAX} UIDs of pods",
        lambda value: (
            isinstance(value, list)
            and len(value) <= kubernetes.CLAIM_PODS_MAX
            and all(isinstance(uid, str) and re.fullmatch(_UID, uid, re.ASCII) for uid in value)
        ),
    ),
]
Seconds = Annotated[
    float,
    _check(
        "is not a number of seconds since 1970",
        lambda value: type(value) in {int, float} and 0 <= value <= MOST_NUMBER,
    ),
]


# --- the rows of the table ---

#: "opener": root, or the user that opened a host process's tenant.
Caller: TypeAlias = Literal["anyone", "root", "root or the opener", "root or who took it"]
ROOT: Final = "root"
OPENER: Final = "root or the opener"
#: "main" answers at once, without an acknowledgement. "decide" needs nothing but the ledger.
#: "create" reads an image, or waits for an eviction, and "request" may have to ask an engine: both
#: have threads of their own, and have the others do what is theirs.
Thread: TypeAlias = Literal["main", "read", "decide", "request", "create"]
#: What a method returns of a reply, beside nothing and the value of one key.
REPLY: Final = "reply"
ROWS: Final = "rows"
ROWS_AND_REPLY: Final = "rows and reply"
Replies: TypeAlias = tuple[list[Any], dict[str, Any]]  # rows, and what stands beside `ok`
_FIELD_OF: Final = {"everything": "all", "identity": "id", "uid": "claim"}  # by parameter
_Method = TypeVar("_Method", bound=Callable[..., Any])


class Field(NamedTuple):
    """A field of a request; without a `default`, which is another parameter's, it is required."""

    name: str
    parameter: str
    check: Check
    default: Any

    @property
    def is_required(self) -> bool:
        """Whether a request must have it."""
        return self.default is inspect.Parameter.empty

    def read(self, request: Mapping[str, Any]) -> Any:
        """Return its value in a request; MalformedRequest."""
        value = request.get(self.name)
        if not self.is_required and (
            value is None or (type(value) is type(self.default) and value == self.default)
        ):
            return self.default
        return self.check(self.name, value)


class Operation(NamedTuple):
    """An operation; `is_slow`: it may take longer than a reply, and its client is kept waiting."""

    declared: Callable[..., Any]
    name: str
    caller: Caller = "anyone"
    answer: str = ""
    thread: Thread = "read"
    is_slow: bool = False
    logs_refusal: bool = False
    more: tuple[str, ...] = ()  # further fields, all optional, that are checked alike

    @property
    def changes(self) -> bool:
        """Whether it changes anything."""
        return self.thread not in {"main", "read"}

    def fields(self) -> tuple[Field, ...]:
        """Return the fields of a request, as declared."""
        hints, found = typing.get_type_hints(self.declared, include_extras=True), []
        for name, parameter in inspect.signature(self.declared).parameters.items():
            if name == "self":
                continue
            kinds = (hints[name], *typing.get_args(hints[name]))
            hint = next(kind for kind in kinds if typing.get_origin(kind) is Annotated)
            check = hint.__metadata__[0]
            if parameter.kind is parameter.VAR_KEYWORD:
                found += [Field(each, each, check, None) for each in self.more]
            else:
                found.append(Field(_FIELD_OF.get(name, name), name, check, parameter.default))
        return tuple(found)


#: The table.
OPERATIONS: Final[dict[str, Operation]] = {}


def operation(
    name: str, caller: Caller = "anyone", answer: str = "", **rest: Any
) -> Callable[[_Method], _Method]:
    """Declare an operation; the method sends it, and returns `answer` of the reply."""

    def declare(method: _Method) -> _Method:
        OPERATIONS[name] = Operation(method, name, caller, answer, **rest)
        code, ends = method.__code__, method.__defaults__ or ()
        named = code.co_varnames[1 : code.co_argcount]
        defaults = dict(zip(reversed(named), reversed(ends), strict=False))
        defaults |= method.__kwdefaults__ or {}

        @functools.wraps(method)
        def ask(self: ClientOperations, *values: Any, **others: Any) -> Any:
            method(self, *values, **others)  # TypeError where it does not take them
            given = {**dict(zip(named, values, strict=False)), **others}
            rows, reply = self.exchange(
                name,
                {
                    _FIELD_OF.get(parameter, parameter): value
                    for parameter, value in given.items()
                    if value is not None and value != defaults.get(parameter)
                },
            )
            if answer in {ROWS, ROWS_AND_REPLY}:
                return rows if answer == ROWS else (rows, reply)
            return reply if answer == REPLY else reply[answer] if answer else None

        return cast("_Method", ask)

    return declare


class LauncherOperations:
    """The operations of a container's start that only runtime/client.c and the hook send."""

    @operation("hello", thread="main")
    def hello(self) -> None:
        """Find out whether the daemon answers."""

    @operation("create", ROOT, REPLY, thread="create", logs_refusal=True)
    def create(
        self, identity: ContainerId, bundle: Name, marker: Name, verb: Name = "", bind: Name = ""
    ) -> Replies:
        """Make a container's edits, and reserve what it requests.

        mode, key, bind
        """

    @operation("checkpoint", ROOT, thread="decide")
    def checkpoint(self, identity: ContainerId) -> None:
        """Ask whether a container may be dumped: one with a GPU may not."""


class ClientOperations:
    """The operations that the client sends, each as a method."""

    def exchange(self, op: str, fields: Mapping[str, Any]) -> Replies:
        """Send a request; return the rows of the reply, and its other keys."""
        raise NotImplementedError

    @operation("bind", OPENER, thread="decide", logs_refusal=True)
    def bind(
        self, key: Key, identity: ContainerId, pid: Pid | None = None, uncovered: Name = ""
    ) -> None:
        """Bind the reservation `key` to the lifetime of process `pid`.

        The launcher that created a container sends a pidfd of its process instead, as root, and in
        `uncovered` why it could not cover what the create's answer named.
        """

    @operation("release", OPENER, thread="decide")
    def release(self, key: Key, identity: ContainerId) -> None:
        """Release the allocation of the tenant `key`."""

    @operation("open", "anyone", REPLY, thread="create", logs_refusal=True)
    def open(
        self, quota: Texts, name: Name = "", *, rootless: Flag = False, ticket: Secret = ""
    ) -> protocol.HostProcessGrant:
        """Reserve `quota` for a host process, which must `bind` before it runs the command.

        `ticket` is the secret of a ticket of this process: what was granted to it is taken over.
        """

    @operation("queue", "anyone", ROWS)
    def queue(self) -> list[QueueEntry]:
        """Return the starts that wait, and those that were granted and have not started yet."""

    @operation("queue-take", "anyone", REPLY, thread="decide", logs_refusal=True)
    def take_ticket(  # noqa: PLR0913 - a request is read from all there is
        self,
        kind: Annotated[str, one_of("command", "container")],
        wait_seconds: Annotated[int, number(0, 30 * 86400)],
        *,
        name: Name = "",
        quota: Texts = _NO_TEXTS,
        variables: Texts = _NO_TEXTS,
        annotations: Texts = _NO_TEXTS,
        cards: Annotated[str, text(256)] = "",
        rootless: Flag = False,
    ) -> Ticket:
        """Return a ticket for this process; `wait_seconds` 0: without a limit.

        The request is `quota`, texts by canonical key, or what an engine's command line has:
        `variables` and `annotations` of the container, and `cards`, the value of --gpus.
        """

    @operation("queue-poll", "anyone", REPLY)
    def ticket_status(self, ticket: TicketId, secret: Secret) -> TicketStatus:
        """Return what has become of a ticket, to whoever knows its secret."""

    @operation("queue-cancel", "root or who took it", "name", thread="decide")
    def cancel_ticket(self, ticket: TicketId) -> str:
        """End a ticket: one's own, or any for root; return the name of its start."""

    @operation("cards", "anyone", ROWS)
    def cards(self) -> list[CardRow]:
        """Return the cards, by index."""

    @operation("tenants", "anyone", ROWS)
    def tenants(self, *, everything: Flag = False) -> list[TenantStatus]:
        """Return the tenants; all of them: also containers without a GPU, with the reason."""

    @operation("tenant", "anyone", "tenant")
    def tenant(self, name: Name) -> TenantStatus:
        """Return a tenant by its name, namespace/pod/container, or the start of a name or id."""

    @operation("why", "anyone", ROWS_AND_REPLY)
    def _why(self, name: Name) -> Replies:
        """Return the breakdown of a tenant's memory.

        WhyProcess rows; `why`: Why
        """

    @operation("set", ROOT, "tenant", thread="request", logs_refusal=True, more=protocol.SET_FIELDS)
    def set(self, name: Name, *, reset: Flag = False, **values: Setting | None) -> TenantStatus:
        """Change a running tenant's quota: SET_FIELDS as the user wrote them, None for no change.

        Or `reset` all of them. Returns the changed tenant; its `warnings` report usage over the
        new quota.
        """

    @operation("pause", ROOT, "tenant", thread="request", logs_refusal=True)
    def pause(self, name: Name, reason: Reason = "") -> TenantStatus:
        """Pause all processes of a tenant until `resume`; return the tenant."""

    @operation("resume", ROOT, "tenant", thread="request", logs_refusal=True)
    def resume(self, name: Name) -> TenantStatus:
        """Resume a tenant that an operator paused or the audit froze; return the tenant."""

    @operation("stop", ROOT, "tenant", thread="request", logs_refusal=True)
    def stop(
        self,
        name: Name,
        signal: Annotated[str, one_of(*protocol.STOP_SIGNALS)],
        timeout: Annotated[int, number(0, protocol.STOP_TIMEOUT_MAX_SECONDS)],
        reason: Reason = "",
    ) -> TenantStatus:
        """Send `signal` to a tenant's first process, and SIGKILL to all after `timeout` seconds.

        Returns the tenant at once, usually before it has exited.
        """

    @operation("evict", ROOT, "tenant", thread="create", is_slow=True, logs_refusal=True)
    def evict(
        self, name: Name, reason: Reason = "", *, hold: Flag = False, force: Flag = False
    ) -> TenantStatus:
        """Evict a tenant's GPU memory, and wait until it is done; return the tenant.

        With `hold` it is not restored before `restore`, even if its program uses CUDA. With `force`
        its claims of managed and shared memory are ignored.
        """

    @operation("restore", ROOT, "tenant", thread="create", is_slow=True, logs_refusal=True)
    def restore(self, name: Name, reason: Reason = "") -> TenantStatus:
        """Restore a tenant's evicted memory, and wait until it is done; return the tenant."""

    @operation("move", ROOT, "tenant", thread="create", is_slow=True, logs_refusal=True)
    def move(self, name: Name, card: Card, reason: Reason = "") -> TenantStatus:
        """Move a tenant to the card with this index or UUID; return the tenant."""

    @operation("reload", ROOT, "changed", thread="decide")
    def reload(self) -> list[str]:
        """Reload the configuration; return the changed keys. If it is refused, nothing changes."""

    @operation("allocation", ROOT, "folder", thread="decide")
    def allocation(self, card: Card, memory_bytes: Annotated[int, number(1, MOST_BYTES)]) -> str:
        """Return the folder that the device plugin has mounted for a part of the card `card`.

        It is to be mounted read-only at ALLOCATION_MOUNT in the container.
        """

    @operation("claim-prepare", ROOT, REPLY, thread="decide")
    def prepare_claim(  # noqa: PLR0913 - a claim is put together from all there is
        self,
        uid: Uid,
        *,
        namespace: DnsName,
        name: DnsName,
        pods: Pods,
        devices: Annotated[Sequence[ClaimDevice], devices],
        parameters: Annotated[Mapping[str, str], texts(16, 64)] = _NO_TEXTS,
    ) -> kubernetes.PreparedClaim:
        """Reserve what the scheduler allocated to a claim; the same again is fine.

        `pods` are the UIDs of those that may use it, and `parameters` canonical keys of the claim's
        opaque configuration.
        """

    @operation("claim-pods", ROOT, thread="decide")
    def set_claim_pods(self, uid: Uid, pods: Pods) -> None:
        """Have the pods with these UIDs be those that may use a prepared claim."""

    @operation("claim-unprepare", ROOT, thread="decide")
    def unprepare_claim(self, uid: Uid) -> None:
        """Release a claim; one that is not prepared is fine."""

    @operation("claims", "anyone", ROWS)
    def claims(self) -> list[kubernetes.ClaimStatus]:
        """Return the prepared claims."""

    @operation("node-setting", ROOT, thread="decide")
    def _node_setting(
        self, key: Setting, value: Name = "", source: Annotated[str, text(400)] = ""
    ) -> None:
        """Set a setting of the node by a label of its Node object, the source; key alone: reset."""

    @operation("card-policy", ROOT, "card", thread="decide", logs_refusal=True)
    def set_card_policy(self, card: Card, policy: Name | None = None) -> CardRow:
        """Set the policy of a card's tenants (None: as each requests it); return the card."""

    @operation("card-cordon", ROOT, "card", thread="decide", logs_refusal=True)
    def cordon(self, card: Card, reason: Annotated[str, text(200)] | None = None) -> CardRow:
        """Stop placing tenants on the card with this index or UUID; return the card."""

    @operation("card-uncordon", ROOT, "card", thread="decide", logs_refusal=True)
    def uncordon(self, card: Card) -> CardRow:
        """Allow new tenants on a card again; return the card."""

    @operation("status", "anyone", REPLY)
    def status(self) -> protocol.DaemonStatus:
        """Return the status of the daemon."""

    @operation("metrics", "anyone", ROWS_AND_REPLY)
    def _metrics(self) -> Replies:
        """Return the figures of the cards, the tenants and the daemon at one time.

        CardRow, TenantRow and EndedTenantRow rows, as card, tenant and ended; `node`: NodeMetrics
        """

    @operation("history", "anyone", ROWS)
    def _events(
        self,
        name: Annotated[str, text(256)] = "",
        since: Seconds = 0.0,
        after: Annotated[int, number(0, MOST_NUMBER)] = 0,
    ) -> list[protocol.HistoryEvent]:
        """Return a page of the events since `since` (of the epoch) that came after number `after`.

        Those of the containers or the card that `name` means, or all events.
        """
