# SPDX-License-Identifier: Apache-2.0
"""An image, by what it says of itself; and a container of this node."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from gpushare.cli.explain import file as files
from gpushare.cli.explain import told
from gpushare.cli.prose import wrapped
from gpushare.client import DaemonError, DaemonUnreachable, Refused, UnknownTenant
from gpushare.images import NotFound, engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gpushare.client import Client
    from gpushare.images.engine import Inspected

_NAME: Final = re.compile(r"[A-Za-z0-9][\w./:@-]{0,254}", re.ASCII)


def may_be(said: str) -> bool:
    """Whether `said` may be what an engine calls an image or a container."""
    return _NAME.fullmatch(said) is not None


def container(name: str, client: Client) -> dict[str, Any] | None:
    """Return which container of this node `name` is; None where none is, or nobody answers."""
    try:
        tenant = client.tenant(name)
    except (UnknownTenant, DaemonUnreachable, DaemonError, Refused):
        return None
    return {"kind": "container", "name": tenant["name"] or name, "state": tenant["state"]}


def explained(name: str, file: Path | None, *, is_named: bool) -> dict[str, Any] | None:
    """Return what the image `name` says of itself, for a node as file.explained(); None: no image.

    What `docker run --runtime=gpushare NAME` would be given is what its variables alone ask for.
    """
    found = _inspected(name)
    if found is None:
        return None
    env = [f"{variable}={text}" for variable, text in found.variables.items()]
    spec = {"ociVersion": "1.0.2", "process": {"env": env}, "root": {"path": "rootfs"}}
    data = files.explained("-", file, is_named=is_named, text=json.dumps(spec))
    (told,) = data["containers"]
    rest = {
        key: told[key]
        for key in ("written", "cards", "hears", "given", "refused", "notes", "problems")
    }
    toolkit = found.variables.get("CUDA_VERSION", "")
    for row in rest["written"]:
        del row["line"], row["column"]  # of the text that was made for it
    return {"kind": "image", "name": name, "node": data["node"], "cuda": toolkit, **rest}


def _inspected(name: str) -> Inspected | None:
    for one in engine.there():
        try:
            found = one.image(name)
        except NotFound:
            continue  # it does not answer, or not to this user: another may
        if found is not None:
            return found
    return None


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield what explained() or container() returned, to be read."""
    name = data["name"]
    if data["kind"] == "container":
        yield from wrapped(
            f"{name} is a container of this node ({data['state']}). `gpushare inspect {name}` has "
            f"its quota and where each key came from, `gpushare why {name}` where its memory is."
        )
        return
    yield f"image {name}"
    yield from told.of_container(data, "The image says of itself")
    yield ""
    toolkit = f"It is of CUDA {data['cuda']}. " if data["cuda"] else ""
    yield from wrapped(
        f"{toolkit}`gpushare compat {name}` says whether it runs on this machine's driver and "
        "cards. A variable of the image counts as one of the caller's, as far as `trust.env` lets "
        f"it: `gpushare explain trust`. Read by {data['node']}."
    )
