# SPDX-License-Identifier: Apache-2.0
"""Programs that the measurements start: `python -m tools.gpu.child.NAME`.

Each is an ordinary client of the driver. Those that hold a conversation read a command a line and
answer with a JSON object a line (conversation.py), as gpushare-probe does.
"""
