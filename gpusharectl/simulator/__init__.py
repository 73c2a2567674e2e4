"""What if: nodes, arrivals and departures, decided as it is for real."""
