"""PipeDream's planner: layers, measured or a scenario's own, dealt to workers that differ in number by stage."""
