"""The admission webhook in a cluster: its objects, certificate and steps."""
