"""Which pods to evict: for a more important pod, or to make room by moves."""
