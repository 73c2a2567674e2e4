"""A node's pods and the devices that they hold, as kubelet and the API server tell."""
