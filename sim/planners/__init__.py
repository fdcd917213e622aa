"""PipeDream's planner: measured layers, dealt to workers that differ in number by stage."""
