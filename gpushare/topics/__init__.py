# SPDX-License-Identifier: Apache-2.0
"""What `gpushare explain` knows of codes and topics: texts beside this file, and our own tables."""

from gpushare.topics.catalogue import TOPICS, close, entries, find
from gpushare.topics.entry import PARTS, Entry

__all__ = ["PARTS", "TOPICS", "Entry", "close", "entries", "find"]
