"""Launch scripts as a shell would read them, without running anything."""
