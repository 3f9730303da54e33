# SPDX-License-Identifier: Apache-2.0
"""The text of gpushare.yaml: what it says, of whom it says it, and what is wrong with it.

`document` reads the text and knows the line of everything, `rules` and `sections` say what is
wrong, `read` makes sure of both, `show` says what holds and which line says so. What comes of it is
in gpushare/config.py.
"""

from gpushare.settings.cards import CardRule, CardSection, card_sections, rule_of
from gpushare.settings.document import ConfigError, Problem
from gpushare.settings.read import checked, text_of
from gpushare.settings.rules import schema
from gpushare.settings.sections import (
    USERS,
    USERS_CEILINGS,
    USERS_TOGETHER,
    namespaces,
    of_namespace,
    section_of,
    terms,
)

__all__ = [
    "USERS",
    "USERS_CEILINGS",
    "USERS_TOGETHER",
    "CardRule",
    "CardSection",
    "ConfigError",
    "Problem",
    "card_sections",
    "checked",
    "namespaces",
    "of_namespace",
    "rule_of",
    "schema",
    "section_of",
    "terms",
    "text_of",
]
