# SPDX-License-Identifier: Apache-2.0
"""The faults of docs/explanation/faults.md, made for real: nothing is lost, nothing is given twice.

Each test ends with what is promised beside who is alive, with a tenant beside the fault that never
saw a call fail, and with the lines of the log that say what was done.
"""
