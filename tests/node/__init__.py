# SPDX-License-Identifier: Apache-2.0
"""Stories of one daemon in this process, on a clock that the test moves: no race is possible."""
