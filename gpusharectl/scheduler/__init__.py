"""kube-scheduler's configuration on its own hosts: put, tried, taken back."""
