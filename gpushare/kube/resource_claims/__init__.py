"""ResourceClaims: what a pod asks by them, what they have, their templates. Pure."""
