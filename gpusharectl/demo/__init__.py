"""The demo: real extender and device plugin on a cluster without Kubernetes."""
