"""Floor 0, describe: YAML in, frozen and validated records out.

A quarter of the room is docstrings: those of fields make the reference page, the schema and the help. Another part is
what frameworks of each version do, and errors that name the remedy.
"""

from sim.specs.hardware import ClusterSpec, GpuSpec, LevelSpec, NetworkSpec, NodeSpec, StorageSpec
from sim.specs.loading import build_scenario, load_scenario
from sim.specs.model import LayerKind, ModelSpec
from sim.specs.plan import ParallelPlan
from sim.specs.presets import load_preset, preset_names, preset_source
from sim.specs.profile import Profile
from sim.specs.scenario import Scenario
from sim.specs.stack import StackSpec
from sim.specs.training import TrainingSpec

__all__ = [
    "ClusterSpec",
    "GpuSpec",
    "LayerKind",
    "LevelSpec",
    "ModelSpec",
    "NetworkSpec",
    "NodeSpec",
    "ParallelPlan",
    "Profile",
    "Scenario",
    "StackSpec",
    "StorageSpec",
    "TrainingSpec",
    "build_scenario",
    "load_preset",
    "load_scenario",
    "preset_names",
    "preset_source",
]
