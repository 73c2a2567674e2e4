"""Install into a cluster, and uninstall."""
