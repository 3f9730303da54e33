# SPDX-License-Identifier: Apache-2.0
"""`gpushare dashboard`: web pages with the cards, the containers and their figures over time.

It is a separate process that changes nothing: it queries the control socket as the command line
does, and reads the metrics history. docs/adr/0034 has the reasons for how it is made.

| module | content |
|---|---|
| access | which requests are answered: tokens, names of this host, security headers |
| live | what gpushared says now, at most once a second |
| problems | what needs attention, most urgent first; the containers that wait |
| series | figures over time for graphs, as JSON and CSV |
| server | the addresses of the pages, and the process |
| static | the pages: HTML, CSS and JavaScript modules, and uPlot |
"""

from typing import Final

DEFAULT: Final = "127.0.0.1:9465"
