"""The operator's command line: inspect, install, simulate and more."""
