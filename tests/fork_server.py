# SPDX-License-Identifier: Apache-2.0
"""Has imported gpushared, and forks one for each request: `python -m tests.fork_server FD`.

tests/stack/forked.py asks. The server ends with the other end of the socket, what it started does
not.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from typing import Any, Final

import jsonschema  # noqa: F401 - gpushared's first configuration has it imported

from gpushare.daemon.__main__ import main

_MOST_BYTES: Final = 1 << 17


def serve(requests: socket.socket) -> list[str]:
    """Return the arguments of a gpushared, in its process; in the server's, do not return."""
    while True:
        text, files, _, _ = socket.recv_fds(requests, _MOST_BYTES, 1)
        if not text:
            os._exit(0)
        wanted = json.loads(text)
        if "reap" in wanted:
            _, status = os.waitpid(wanted["reap"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                requests.close()
                return _become(wanted, *files)
            os.close(files[0])
        requests.send(str(answer).encode())


def _become(wanted: dict[str, Any], output: int) -> list[str]:
    os.setsid()
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.environ.clear()
    os.environ.update(wanted["env"])
    argv: list[str] = wanted["argv"]
    return argv


if __name__ == "__main__":
    # Each gpushared collects its garbage as it starts, and would copy what is shared by that.
    gc.collect()
    gc.freeze()
    sys.argv = serve(socket.socket(fileno=int(sys.argv[1])))
    main()
