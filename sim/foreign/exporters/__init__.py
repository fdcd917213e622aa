"""Exporters: scenarios in, what a framework takes out. The way opposite to importers.

>>> from sim.specs import load_scenario
>>> from sim.foreign.exporters import export_scenario
>>> exported = export_scenario(load_scenario("scenarios/gpt3-175b-1024-a100.yaml"), "megatron-lm")
>>> "--num-layers 96" in exported.text
True
"""

from sim.foreign.exporters.account import Account
from sim.foreign.exporters.exported import FRAMEWORKS, Exported, check_beside_plan, check_framework, export_scenario

__all__ = ["FRAMEWORKS", "Account", "Exported", "check_beside_plan", "check_framework", "export_scenario"]
