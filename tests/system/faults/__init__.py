# SPDX-License-Identifier: Apache-2.0
"""The faults of docs/explanation/failure-modes.md, made for real.

At its end, each test compares the allocations with the containers that still run. It also checks
that no call failed in a second container, and that the log reports what gpushared did.
"""
