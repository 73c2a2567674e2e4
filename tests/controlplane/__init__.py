"""Scenarios under a real etcd, kube-apiserver and kube-scheduler, with our extender."""
