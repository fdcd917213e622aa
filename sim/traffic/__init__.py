"""What a step puts on the links of a machine: bytes by network, messages as streams, collectives within actions."""
