"""Planners of pipelines without flush from measured layers: PipeDream's and PipeDream-2BW's, and what a play of them
gives.

Where the search prices every plan of a described model, these take a profile of layers (forward, backward, what is
sent, weights), measured or from a scenario, and deal them to workers that need not be alike in number from stage to
stage.
"""

from sim.planners.answers import PipeDreamAnswer, TwoBufferedAnswer, ask_pipedream, ask_two_buffered
from sim.planners.layers import LayerProfile, LayerTimes, read_profile
from sim.planners.pipedream import data_parallel, plan_pipeline, price_plan
from sim.planners.pipeline_plan import Level, PipelinePlan, PlannedStage, levels_of, read_levels
from sim.planners.scenarios import PlayedPlan, play_plan, profile_of
from sim.planners.two_buffered import TwoBufferedPlan, TwoBufferedPlans, plan_two_buffered

__all__ = [
    "LayerProfile",
    "LayerTimes",
    "Level",
    "PipeDreamAnswer",
    "PipelinePlan",
    "PlannedStage",
    "PlayedPlan",
    "TwoBufferedAnswer",
    "TwoBufferedPlan",
    "TwoBufferedPlans",
    "ask_pipedream",
    "ask_two_buffered",
    "data_parallel",
    "levels_of",
    "plan_pipeline",
    "plan_two_buffered",
    "play_plan",
    "price_plan",
    "profile_of",
    "read_levels",
    "read_profile",
]
