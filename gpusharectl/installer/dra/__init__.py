"""Dynamic Resource Allocation (DRA): its checks, its objects and its steps."""
