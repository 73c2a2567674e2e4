"""YAML that is shipped with the packages."""
