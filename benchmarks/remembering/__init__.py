"""Programs with memory: they carry on what single observations of an environment hide."""
