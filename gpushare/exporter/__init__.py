# SPDX-License-Identifier: Apache-2.0
"""gpushare-exporter: gpushared's metrics for Prometheus.

It is a separate process without privileges, which queries the control socket as the command line
does. gpushared itself never listens on a network, and the exporter can report that it is down.

| module | content |
|---|---|
| metric_family | what the daemon is asked for, with a rate limit; the type of a metric family |
| node, sensors, containers | tables of the metric families |
| aliases | names of other exporters for the same metrics |
| exposition | the text that Prometheus reads |
"""

from typing import Final

#: Outside 9100-9999, which other exporters use (see the list of default ports in Prometheus' wiki).
DEFAULT: Final = "127.0.0.1:10418"
