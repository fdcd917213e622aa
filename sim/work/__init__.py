"""Floor 1, count: parameters, FLOPs, bytes and collectives of each layer and stage; no hardware, no seconds.

Mixtures of experts, layers that carry a state, adapters, and recomputation module by module have operations of their
own. They take more lines than a dense transformer would.
"""
