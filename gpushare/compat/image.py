# SPDX-License-Identifier: Apache-2.0
"""What an image says of itself: its environment, its command, and what lies in its root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpushare.compat import hints, require, runtimes
from gpushare.compat.facts import Image, Runtime
from gpushare.compat.version import Version, as_written, exact
from gpushare.oci.compat import Compat
from gpushare.oci.platform import Platform
from gpushare.oci.rootfs import Rootfs

#: NVIDIA's images say their toolkit, and the version of the runtime's package, `12.4.127-1`.
_VARIABLES: Final = ("CUDA_VERSION", "NV_CUDA_CUDART_VERSION")


def of(
    variables: Mapping[str, str],
    args: Sequence[str],
    found: Sequence[Runtime] = (),
    own_driver: Version = (),
) -> Image:
    """Return the facts of an image with that environment and command, and what was found in it."""
    return Image(
        runtimes=_with_said(tuple(found), variables),
        requires=require.of_env(variables),
        disabled=require.is_disabled(variables),
        compat=own_driver,
        precisions=hints.precisions(args, variables),
    )


def look(
    rootfs: Rootfs,
    variables: Mapping[str, str],
    args: Sequence[str],
    platform: Platform,
    package: Compat | None,
) -> Image:
    """Return the facts of the image whose root is `rootfs`; OldKernelError.

    `package` is the cuda-compat in it, as gpushare.oci.compat finds it.
    """
    found = runtimes.find(rootfs, variables, platform)
    return of(variables, args, found, () if package is None else exact(package.version))


def _with_said(found: tuple[Runtime, ...], variables: Mapping[str, str]) -> tuple[Runtime, ...]:
    """Return `found`, made finer by what the environment says, or what that says alone."""
    for name in _VARIABLES:
        said = as_written(variables.get(name, "").partition("-")[0])
        if said is None or len(said) > 4:
            continue
        if not found:
            return (Runtime(said, name),)
        first = found[0]
        if len(first.version) == 1 and first.version[0] == said[0]:
            return (Runtime(said, first.where), *found[1:])
    return found
