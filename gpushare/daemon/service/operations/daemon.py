# SPDX-License-Identifier: Apache-2.0
"""What is shown of the daemon itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpushare.daemon.node import Node
from gpushare.daemon.service.request import Answer, Operation, Request, answer
from gpushare.daemon.views import rows


def _status(_request: Request, node: Node) -> Answer:
    return answer({**rows.status_row(node)})


OPERATIONS: Final[Mapping[str, Operation]] = {
    "status": Operation(_status),
}
