"""Floor 2, cost: plans become seconds of stages and ranks, and bytes. One assembly; a scenario is a batch of one plan.

`batch` holds plans as columns, `cells` what their layers take, `stages` puts stages together, `ranks` says what every
rank does once a step, `memory` what it holds; `scenario` is the same of one plan, stage by stage.
"""
