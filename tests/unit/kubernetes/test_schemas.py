# SPDX-License-Identifier: Apache-2.0
"""The check against the schemas can fail."""

from __future__ import annotations

import pytest

from . import schemas


def test_an_unknown_field_and_a_wrong_type_are_refused() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    schemas.check({**pod, "spec": spec})
    with pytest.raises(pytest.fail.Exception, match="memory"):
        schemas.check({**pod, "spec": {**spec, "memory": "4Gi"}})
    with pytest.raises(pytest.fail.Exception, match=r"Kubernetes 1\.30: spec\.containers"):
        schemas.check({**pod, "spec": {"containers": "c"}})
