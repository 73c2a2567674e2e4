"""What only a real card can say; run with ``-m gpu`` on a machine that has one."""
