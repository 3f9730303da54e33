# SPDX-License-Identifier: Apache-2.0
"""What a program is told to compute with, as far as its command line or environment says it.

The options are those of vLLM, SGLang and text-generation-inference; their `auto` says nothing, for
it is the model's own choice, which is not looked into.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpushare.quota.errors import printable

_OPTIONS: Final = frozenset(
    {"--dtype", "--torch-dtype", "--quantization", "--quantize", "--kv-cache-dtype"}
)
_VARIABLES: Final = ("DTYPE", "QUANTIZE", "KV_CACHE_DTYPE")
#: What a value begins with, and the format that it is.
_FORMATS: Final = (
    ("bfloat16", "bfloat16"),
    ("bf16", "bfloat16"),
    ("fp8", "fp8"),
    ("float8", "fp8"),
    ("nvfp4", "fp4"),
    ("fp4", "fp4"),
)
# A command line may be a script; what is behind this is not its options any more.
_MOST_WORDS: Final = 512
_MOST_HINTS: Final = 8


def precisions(args: Sequence[str], variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return (format, who says so) of everything that is said, each format once."""
    found: dict[str, str] = {}
    for option, value in (*_options(args), *_said(variables)):
        name = _format(value)
        if name is not None and len(found) < _MOST_HINTS:
            found.setdefault(name, f"{option}={printable(value, 40)}")
    return tuple(found.items())


def _options(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    # Of `sh -c "vllm serve --dtype bfloat16"` the words are inside one argument.
    words = [word for arg in args[:_MOST_WORDS] for word in arg[:4096].split()][:_MOST_WORDS]
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option not in _OPTIONS:
            continue
        if equals:
            yield option, value
        elif place + 1 < len(words):
            yield option, words[place + 1]


def _said(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    yield from ((name, variables[name]) for name in _VARIABLES if name in variables)


def _format(value: str) -> str | None:
    plain = value.strip("\"'").lower()
    return next((name for start, name in _FORMATS if plain.startswith(start)), None)
