"""kube-scheduler's configuration on control-plane hosts: edit, try, restore."""
