# SPDX-License-Identifier: Apache-2.0
"""`python -m gpushare.cli`, where no script was installed."""

from gpushare.cli import main

main()
