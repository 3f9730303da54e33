# SPDX-License-Identifier: Apache-2.0
"""Proves that a refactoring changed nothing: what gpushare does is recorded, and compared.

    python -m tests.guard record before.json.gz     # as root, on the tree as it was
    python -m tests.guard record after.json.gz      # on the tree as it is now
    python -m tests.guard compare before.json.gz after.json.gz
    python -m tests.guard compare before.json.gz    # records this tree itself, then compares

The recording drives real programs only through interfaces that outlive a refactoring: gpushared is
started on simulated cards and spoken to over its control socket, containers are bundles with a
config.json, the launcher is run as an engine runs it, and the commands are called by the package's
entry point. The requests are the same in every run (generate.py, vocabulary.py): 2,000 of them, and
each container of tests/corpus. Of each are recorded

- the reply, and config.json as it is afterwards,
- the tenant as the control socket shows it, after create, bind and what an operator changes,
- all tenants and cards after the daemon was restarted, ended by SIGTERM and by SIGKILL: that is the
  state of the ledger, as far as anybody can see it,
- the events of the log, by tenant,

and of each manifest the JSON of `explain`, `validate` and `convert`.

`compare` prints what differs, one line for each kind of difference, and exits 1. It knows three
exceptions: what can never be the same twice (compare.py, VOLATILE), what renames.yaml lists, and
sentences. Of a sentence it compares only that there is one, and which request keys it names;
`--texts` compares every character. Whoever renames a field, an event or a key adds it to
renames.yaml in the same commit; whoever renames what is *sent* (an operation, a field of a request,
a key of gpushare.yaml) changes wire.py or nodes.py.
"""
