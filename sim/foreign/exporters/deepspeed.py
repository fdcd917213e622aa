"""DeepSpeed: its JSON, for plans that are all data parallelism; the model stands in the training program."""

from __future__ import annotations

import json
from typing import Any

from sim.foreign.exporters.account import Account
from sim.foreign.exporters.rows import data_of


def export_deepspeed(account: Account) -> tuple[str, dict[str, Any]]:
    """The JSON, and what stands in it. Raises SpecError: DeepSpeed's JSON cannot say the plan."""
    plan, reuse = account.scenario.plan, account.scenario.stack.max_reuse_params
    part = {"ratio": plan.optimizer_offload} if plan.optimizer_offload < 1 else {}
    facts = {
        "accumulation": account.scenario.num_microbatches,
        "reuse": int(reuse or 0),
        "offload": {"device": "cpu", "pin_memory": True, **part},
    }
    data = data_of(account, facts)
    return json.dumps(data, indent=2) + "\n", data
