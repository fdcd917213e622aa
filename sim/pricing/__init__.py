"""Floor 2, cost: plans become seconds of stages and ranks, and bytes. One assembly; a scenario is one plan.

Two records stand between a scenario and its seconds: `cells.Plans`, columns of plans, and `stages.StageSeconds`, all
that takes time. `deal` says which kinds of stages and ranks the plans have, `zero` what GPUs that hold the same send
each other, `memory` what GPUs hold. Every function takes a column of plans and one plan alike, and stages that hold
different kinds of layers. That is why the room is larger than a formula for equal stages would be.
"""
