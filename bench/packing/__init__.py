"""How full policies pack cards: the public trace replayed, beside a linear program."""
