"""What the installer does on single nodes, by short-lived pods there."""
