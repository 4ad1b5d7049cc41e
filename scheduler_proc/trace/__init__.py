"""Records runs of the core and replays them exactly."""
