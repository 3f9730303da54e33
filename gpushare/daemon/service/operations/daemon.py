# SPDX-License-Identifier: Apache-2.0
"""What is shown of the daemon itself, its figures, and what happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

from gpushare import protocol
from gpushare.daemon.control.reload import reload
from gpushare.daemon.node import Node
from gpushare.daemon.service.request import Answer, BadRequest, Operation, Request, answer
from gpushare.daemon.views import figures, rows

_MOST: Final = 1 << 53  # that JSON has a number for everywhere


def _status(_request: Request, node: Node) -> Answer:
    return answer({**rows.status_row(node)})


def _metrics(_request: Request, node: Node) -> Answer:
    tenants: Iterator[Mapping[str, Any]] = ({"tenant": row} for row in figures.tenants(node))
    cards: Iterator[Mapping[str, Any]] = ({"card": row} for row in figures.cards(node))
    return chain(cards, tenants), {"node": figures.of_node(node)}


def _history(request: Request, node: Node) -> Answer:
    name, since = request.fields.get("name", ""), request.fields.get("since", 0)
    if not isinstance(name, str) or len(name) > 256:
        raise BadRequest("name is not a text of at most 256 characters")
    if type(since) not in {int, float} or not 0 <= since <= _MOST:
        raise BadRequest("since is not a number of seconds since 1970")
    after = request.number("after", 0, _MOST)
    if node.history is None:
        return answer()
    found = node.history.page(name, since, after, protocol.HISTORY_ROWS)
    return (dict(event) for event in found), {}


def _reload(request: Request, node: Node) -> Answer:
    request.root_only()
    return answer({"changed": reload(node)})


OPERATIONS: Final[Mapping[str, Operation]] = {
    "status": Operation(_status),
    "metrics": Operation(_metrics),
    "history": Operation(_history),
    "reload": Operation(_reload, changes=True),
}
