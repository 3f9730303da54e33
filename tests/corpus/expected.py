# SPDX-License-Identifier: Apache-2.0
"""What each reader makes of a manifest of the corpus, as its file of expected results has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpushare.manifest.convert import Converted
from gpushare.manifest.convert.targets import TARGETS
from gpushare.manifest.model import ManifestFile
from gpushare.manifest.request import request_of

from .cases import CorpusManifest, conversion
from .pods import pods
from .results import MODES, in_mode, outside


def requests(file: ManifestFile) -> dict[str, dict[str, str]]:
    """Return what each container that requests something requests, in canonical text."""
    return {
        f"{one.document}/{one.name}": {key: layer[key].text for key in sorted(layer)}
        for one in file.containers
        if (layer := request_of(one, strict=False).requested)
    }


def lost(made: Converted) -> list[str]:
    """Return the canonical keys that are lost."""
    return sorted({one.why.partition(" ")[0] for one in made.lost})


def found(case: CorpusManifest) -> dict[str, Any]:
    """Return what the readers make of a manifest by itself."""
    made = {target: conversion(case, target) for target in TARGETS}
    return {
        "requests": requests(case.file),
        "lost": {
            target: keys
            for target, one in made.items()
            if not isinstance(one, str) and (keys := lost(one))
        },
        "refused": {target: one for target, one in made.items() if isinstance(one, str)},
    }


def admitted(cases: Sequence[CorpusManifest]) -> dict[str, dict[str, str] | str]:
    """Return what becomes of manifests through the policies of each mode, or by themselves."""
    in_cluster = [case for case in cases if pods(case)]
    of_modes = {mode: in_mode(mode, in_cluster) for mode in MODES}
    return {
        str(case): {mode: of_modes[mode][str(case)] for mode in MODES}
        if pods(case)
        else outside(case)
        for case in cases
    }


def texts(case: CorpusManifest) -> dict[str, str]:
    """Return what a manifest is converted to, by target, where that differs."""
    made = {target: conversion(case, target) for target in TARGETS}
    return {
        target: one.text for target, one in made.items() if not isinstance(one, str) and one.changed
    }
