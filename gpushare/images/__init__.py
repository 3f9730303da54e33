# SPDX-License-Identifier: Apache-2.0
"""An image, a container, a bundle or a root directory, to be looked into and never to be run.

`find` takes what a user calls it and returns what it says of itself, with its root open.
"""

from gpushare.images.find import find
from gpushare.images.found import Found, NotFound

__all__ = ["Found", "NotFound", "find"]
