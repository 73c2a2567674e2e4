"""A DRA driver: cards of this node by ResourceClaims, beside classic pods."""
