"""Floor 1, count: parameters, FLOPs, bytes and collectives of each layer and stage; no hardware, no seconds."""
