"""Place pods on cards: mostly pure functions over immutable values.

Nothing here reads a clock, the environment or the network, or writes logs: what a
function needs is an argument, and what it decides is its result. So ``why`` and
``simulate`` call the same functions that decide in production. Mutable, and guarded by
locks, are the ledger, the record of hosts and what ``frag`` learns. The glossary is in
``docs/architecture.md``.
"""
