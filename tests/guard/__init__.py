# SPDX-License-Identifier: Apache-2.0
"""Proves that a refactoring changed nothing: what gpushare does is recorded, and compared.

Run `python -m tests.guard record before.json.gz` as root on the tree as it was, before the first
change. After each change, run `python -m tests.guard compare before.json.gz`, which records this
tree (about three minutes; `--only "story queue"` records one part) and must print that both are
equal.

The recording drives real programs only through interfaces that outlive a refactoring: gpushared is
started on simulated cards and spoken to over its control socket, containers are bundles with a
config.json, the launcher is run as an engine runs it, and the commands are called by the package's
entry point. The parts are

- commands: `explain`, `validate` and `convert`, as JSON, of each manifest of tests/corpus and of
  generated ones,
- rendered (rendered.py): reports, the plans of `setup`, the policies, and the chart if there is
  helm (`./dev setup --all`),
- stories (stories.py): the queue, claims, evictions, managed memory and reloads, with SIGKILL of
  gpushared in between. After each step: the reply, tenants, cards, metrics, and the ledger's files.
  At some steps: what the exporter serves, and what the commands print,
- two nodes (nodes.py): 2,000 generated requests (generate.py, vocabulary.py) and the containers of
  tests/corpus, each with its reply, config.json, tenant and events.

masks.py replaces times, processes, places and measured values before they are written. Everything
else is compared, but for what renames.yaml lists, and sentences. Of a sentence `compare` checks
only that there is one, and which request keys it names; `--texts` compares every character. In
parts that are rendered, every character counts.

Whoever renames or removes a field, an event, a key or a line adds it to renames.yaml in the same
commit; whoever renames what is *sent* (an operation, a field of a request, a key of gpushare.yaml)
changes wire.py, nodes.py or stories.py.
"""
