# SPDX-License-Identifier: Apache-2.0
"""gpushare-exporter: what gpushared says in figures, for Prometheus.

A process of its own, without privileges: it asks the control socket as the command line does, and
listens where gpushared never does. So "the daemon is down" can be told too.

| file | what is in it |
|---|---|
| snapshot | asks the daemon, seldom enough |
| family | what a family is, and the labels |
| cards, containers, node | the families, by what they are about: tables |
| compat | the names that others have for the same figures |
| exposition | the text that Prometheus reads |
| http | requests of strangers: bounded in size, time and number |
| address | where it may listen, and who then has to show a token |
"""

import sys
from typing import Final

#: What to say where there is none: an extra is not installed with the package.
NO_LIBRARY: Final = (
    f"prometheus_client is not installed; {sys.executable} -m pip install prometheus_client (the "
    "extra `metrics` of gpushare-runtime), or for a Python of Debian's python3-prometheus-client"
)
