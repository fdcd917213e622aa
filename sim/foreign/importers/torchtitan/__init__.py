"""torchtitan's job config, in TOML, JSON and Python."""
