# SPDX-License-Identifier: Apache-2.0
"""Manifests in the words of another system, changed where that has to be and nowhere else.

`tree` is the text's shape, `blocks` and `flows` edit it, `plan` gathers what is to change: they
know nothing of GPUs. `targets` are tables, `words` makes a request into their keys, `place` knows
where those go, and `convert` does it for a file.
"""

from gpushare.convert.file import Converted, convert
from gpushare.convert.said import CannotConvert, Saying
from gpushare.convert.targets import TARGETS, Target

__all__ = ["TARGETS", "CannotConvert", "Converted", "Saying", "Target", "convert"]
