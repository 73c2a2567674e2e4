"""``gpusharectl inspect``: the cards of every node and the pods on them."""
