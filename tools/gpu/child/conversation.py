# SPDX-License-Identifier: Apache-2.0
"""Reads commands from stdin and answers each with one JSON line named after it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

Answer = dict[str, object]


def say(event: str, answer: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps({"event": event, **answer}) + "\n")
    sys.stdout.flush()


def converse(program: object) -> None:
    """Call the methods of `program` as told until the input ends; what one raises is the answer."""
    say("driver", {})
    for line in sys.stdin:
        word, *arguments = line.split()
        try:
            answer = getattr(program, word)(*arguments)
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(word, answer)
