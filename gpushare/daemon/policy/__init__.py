# SPDX-License-Identifier: Apache-2.0
"""What cards and their tenants get, and what is done about bypasses: pure, no clock or logger."""
