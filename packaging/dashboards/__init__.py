# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboards in configs/grafana.

    python -m dashboards    in `packaging`: write them again

| module | content |
|---|---|
| panel | a panel and its queries, as Grafana reads them |
| dashboard | a dashboard: its variables, time ranges and layout |
| queries | the variables, and PromQL that selects by them |
| overview, card, container, reports | the panels of each |
"""

from . import card, container, overview, reports
from .dashboard import text
from .queries import CONTAINER, VARIABLES


def texts() -> dict[str, str]:
    """Return the JSON of each dashboard by the name of its file."""
    pages = (
        ("overview", "Overview", VARIABLES, overview.ROWS),
        ("card", "Card", VARIABLES, card.ROWS),
        ("container", "Container", (*VARIABLES, CONTAINER), container.ROWS),
        ("reports", "Reports", VARIABLES, reports.ROWS),
    )
    return {
        f"{name}.json": text(f"gpushare-{name}", f"gpushare / {title}", variables, rows)
        for name, title, variables, rows in pages
    }
