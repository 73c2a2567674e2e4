"""Plain YAML, shipped with the packages."""
