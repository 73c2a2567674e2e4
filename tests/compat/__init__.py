"""``make compat``: chosen tests on several versions of Kubernetes."""
