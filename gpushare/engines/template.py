# SPDX-License-Identifier: Apache-2.0
"""The runtime in the template from which k3s and RKE2 write containerd's configuration.

A template is Go's text/template and no TOML, so only our tables in it are read and changed.
Source: docs.k3s.io/advanced, "Configuring containerd".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.engines import containerd, toml_text
from gpushare.engines.errors import BadConfiguration
from gpushare.engines.place import NAME
from gpushare.engines.toml_text import Name, Tree

BASE: Final = '{{ template "base" . }}\n'
_INCLUDES: Final = re.compile(r"\{\{-?\s*template\s+\"base\"\s+\.\s*-?\}\}")


@dataclass(frozen=True)
class Template:
    """A template; `generated` is what was made of it, or of the base, when containerd started."""

    generated: Tree = field(repr=False)

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the handler after it; of no text, the base with the handler."""
        if default:
            raise BadConfiguration(
                "k3s and RKE2 start with no default runtime but those they know themselves; leave "
                "--set-as-default out and name the handler in a RuntimeClass"
            )
        edited = text or BASE
        section = containerd.section_of(self.generated)
        present = toml_text.only(edited, self._name) or None
        handler = containerd.handler_like(section, present, launcher)
        if present == handler:
            return text
        edited = toml_text.without(edited, self._name, containerd.MARK)
        block = f"\n{containerd.MARK}\n{toml_text.table(self._name, handler)}"
        return toml_text.append(edited, block)

    def unregister(self, text: str, original: str) -> str:  # noqa: ARG002 - has no default
        """Return `text` without the handler."""
        return toml_text.without(text, self._name, containerd.MARK)

    def registered(self, text: str) -> Path | None:
        """Return the launcher that `text` names, None when the handler is not in it."""
        handler = toml_text.only(text, self._name)
        return Path(handler.get("options", {}).get("BinaryName", "")) if handler else None

    def is_default(self, text: str) -> bool:  # noqa: ARG002 - `register` refuses it
        """Return False: a template cannot choose."""
        return False

    def remarks(self, text: str) -> list[str]:
        """Return what the user should know of this template."""
        if text and not _INCLUDES.search(text):
            return ['the template does not begin from the base ({{ template "base" . }})']
        return []

    @property
    def _name(self) -> Name:
        return (*containerd.plugin(self.generated), "runtimes", NAME)
