# SPDX-License-Identifier: Apache-2.0
"""The text of gpushare.yaml: its content, its sections and its errors.

`document` reads the text and knows the line of every key, `schema` and `sections` check it.
gpushare/config.py has the result.
"""

from gpushare.settings.document import ConfigError, ConfigProblem, text_of
from gpushare.settings.schema import load_schema
from gpushare.settings.sections import (
    ANY,
    USERS,
    USERS_MAX_PER_CARD,
    USERS_MAX_PER_REQUEST,
    CardRule,
    CardSection,
    card_sections,
    checked,
    namespaces,
    of_namespace,
    terms,
)

__all__ = [
    "ANY",
    "USERS",
    "USERS_MAX_PER_CARD",
    "USERS_MAX_PER_REQUEST",
    "CardRule",
    "CardSection",
    "ConfigError",
    "ConfigProblem",
    "card_sections",
    "checked",
    "load_schema",
    "namespaces",
    "of_namespace",
    "terms",
    "text_of",
]
