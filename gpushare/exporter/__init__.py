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
