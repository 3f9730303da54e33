# SPDX-License-Identifier: Apache-2.0
"""`python -m gpushare.cli`, for an environment without the installed script."""

from gpushare.cli import main

main()
