# SPDX-License-Identifier: Apache-2.0
"""A class name says what the class is, so it means one thing in the whole tree."""

from __future__ import annotations

import re
from collections import defaultdict

from tools.check.command import ROOT
from tools.check.sources import files

CLASS = re.compile(r"^\s*class (\w+)\s*[:(]", re.MULTILINE)
USED_TWICE_MAX = 10


def test_few_class_names_are_used_twice() -> None:
    places = defaultdict(list)
    for path in files():
        if path.suffix == ".py":
            for name in CLASS.findall((ROOT / path).read_text()):
                places[name].append(str(path))
    assert "TenantRecord" in places, "nothing was found"
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert len(twice) <= USED_TWICE_MAX, twice
