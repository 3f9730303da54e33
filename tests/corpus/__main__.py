# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.corpus update` writes the expected results again: read the difference.

It applies the admission policies, for which `./dev admission` has to have been run.
"""

from __future__ import annotations

import json
import sys

from gpushare.manifest.convert.targets import TARGETS

from . import vendor_keys
from .cases import CASES
from .expected import admitted, found, texts

if sys.argv[1:] != ["update"]:
    sys.exit("usage: python -m tests.corpus update")
vendor_keys.FILE.write_text(vendor_keys.text(), encoding="utf-8")
through_policies = admitted(CASES)
for case in CASES:
    made = found(case) | {"admitted": through_policies[str(case)]}
    text = json.dumps(made, indent=2, ensure_ascii=False)
    case.path.with_suffix(".json").write_text(f"{text}\n", encoding="utf-8")
    converted = texts(case)
    for target in TARGETS:
        case.golden(target).unlink(missing_ok=True)
        if target in converted:
            case.golden(target).write_text(converted[target], encoding="utf-8")
