"""Read a node's cards: from the NVIDIA driver, an inventory file, or made up."""
