"""Hold containers to their cores: the law of delays, and the files that carry them."""
