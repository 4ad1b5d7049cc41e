"""The crash journal of a scheduler, and recovery from steps that raise."""
