# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup`: makes a machine ready, records what it made, and takes exactly that away again.

`plan` says the steps, `made` is the record, `lowlevel` finds the runtime that the launcher wraps.
"""
