"""The compile worker, a process of its own: from constraints to artefacts."""
