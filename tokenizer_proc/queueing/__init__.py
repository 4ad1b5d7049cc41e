"""Who is next, and how long it takes: fair turns, capacity, estimates of the wait."""
