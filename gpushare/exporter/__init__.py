# SPDX-License-Identifier: Apache-2.0
"""gpushare-exporter: gpushared's metrics for Prometheus.

It is a separate process without privileges, which queries the control socket as the command line
does. gpushared itself never listens on a network, and the exporter can report that it is down.

| module | content |
|---|---|
| snapshot | queries the daemon, with a rate limit |
| metric_family | the type of a metric family, and the labels |
| node, containers | tables of the metric families |
| aliases | names of other exporters for the same metrics |
| exposition | the text that Prometheus reads |
| http_server | listen addresses; HTTP requests of untrusted clients, bounded in size and time |
"""

import sys
from typing import Final

#: The error if the library, an optional dependency, is missing.
NO_LIBRARY: Final = (
    f"prometheus_client is not installed. Run {sys.executable} -m pip install prometheus_client "
    "(the extra `metrics` of gpushare-runtime), or install Debian's python3-prometheus-client"
)
