# SPDX-License-Identifier: Apache-2.0
"""The file with the variables of an MPS client, beside a tenant's pages (libhook/cuda/mps.c)."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from gpushare import abi
from gpushare.daemon.cards.mps_state import MpsGrant
from gpushare.daemon.pages.status_page import disown_page
from gpushare.daemon.pages.tenants import Pages

PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"
#: Where a container has the pipe directory of its server: no variable can redirect it.
PIPES: Final = f"{abi.TENANT_DIR}/{abi.PIPES_NAME}"
_DRAFT: Final = f".{abi.MPS_NAME}"


def write_variables(grant: MpsGrant, pages: Pages | None) -> None:
    """Write the variables of a tenant's processes, for those that start from now on; OSError.

    The mount point of the pipe directory is made with them.
    """
    if pages is None:
        return
    variables = {**grant.variables, PIPE_ENV: PIPES}
    text = "".join(f"{name}={value}\n" for name, value in variables.items())

    def write(pages: Pages) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(abi.PIPES_NAME, 0o755, dir_fd=pages.directory)
            os.chmod(abi.PIPES_NAME, 0o755, dir_fd=pages.directory)  # noqa: S103 - any user's
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(_DRAFT, flags, 0o644, dir_fd=pages.directory)
        try:
            os.fchmod(fd, 0o644)
            disown_page(fd)
            os.write(fd, text.encode())
        finally:
            os.close(fd)
        os.rename(_DRAFT, abi.MPS_NAME, src_dir_fd=pages.directory, dst_dir_fd=pages.directory)

    pages.look(write, None)
