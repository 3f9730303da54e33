# SPDX-License-Identifier: Apache-2.0
"""Scenarios that test on a host that quotas are enforced: for `verify`, the demo and the tests.

MemoryScenario(Docker(), ["gpushare"], Report(sys.stdout)).run()
"""
