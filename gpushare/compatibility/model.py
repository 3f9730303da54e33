# SPDX-License-Identifier: Apache-2.0
"""The formats of numbers that a model's config.json states, as Hugging Face's libraries write it.

It is read for a command of a user, with the user's rights, and never when a container is created.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from gpushare.errors import ErrorCode, UserError

_MOST_BYTES: Final = 1 << 20
#: The format of the weights; programs convert it if they are told another one.
WEIGHTS: Final = ("torch_dtype", "dtype")
_QUANTIZATION: Final = ("quant_method", "quant_algo", "format", "fmt")

#: Keys of config.json and their values.
ModelFormats: TypeAlias = "tuple[tuple[str, str], ...]"


def read_model(folder: Path) -> ModelFormats:
    """Return what config.json in `folder` states; UserError if it cannot be read."""
    path = folder / "config.json"
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{path}: not a regular file", code=ErrorCode.INVALID)
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}. Use the folder of a model that contains config.json.",
            code=ErrorCode.NOT_FOUND,
        ) from error
    if len(text) > _MOST_BYTES:
        raise UserError(f"{path}: larger than 1 MiB", code=ErrorCode.INVALID)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON", code=ErrorCode.INVALID) from error
    return tuple(_formats(config))


def _formats(config: Any) -> Iterator[tuple[str, str]]:
    """Yield the formats of a model, and of its text model if it has several."""
    if not isinstance(config, Mapping):
        return
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping):
            yield from _texts(part, WEIGHTS)
            quantization = part.get("quantization_config")
            if isinstance(quantization, Mapping):
                yield from _texts(quantization, _QUANTIZATION)


def _texts(section: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    yield from ((key, section[key]) for key in keys if isinstance(section.get(key), str))
