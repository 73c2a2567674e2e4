"""NVIDIA's driver without a card: a stub of its library, and of nvidia-smi, in C."""
