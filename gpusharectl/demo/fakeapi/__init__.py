"""An API server in memory, for the demo, the simulator and tests."""
