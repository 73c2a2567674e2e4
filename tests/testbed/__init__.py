"""A real Kubernetes control plane on loopback, for tests and benchmarks.

``binaries`` builds etcd, kube-apiserver, kube-scheduler, kube-controller-manager and
kubectl once; ``controlplane`` runs them as plain processes; ``rest`` talks to them;
``kubelet`` is the only stand-in: it sets pods Running.
"""
