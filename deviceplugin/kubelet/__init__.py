"""kubelet's gRPC interfaces: registration and the DevicePlugin service."""
