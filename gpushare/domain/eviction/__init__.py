"""Which pods to evict: to end for a more important pod, or to move so that it fits."""
