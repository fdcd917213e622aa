"""All that was asked of a search, one part after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.report.search import pareto_view, search_view
from sim.report.search_schedules import schedules_view
from sim.report.sensitivity import rules_view, sensitivity_view
from sim.report.standing import own_line, standing_view, why_view
from sim.search import SearchResult


def print_answers(out: Any, result: SearchResult, named: Mapping[str, Any], answers: Mapping[str, Any]) -> None:
    """Print the best plans, and every answer beside them."""
    own = answers.get("own")
    asked = own is not None and answers["own_asked"]
    out.print(search_view(result, None if own is None or asked else own_line(result, own), out.width))
    if result.schedules:
        out.print("", schedules_view(result))
    if own is not None and asked:
        changes = " ".join(f"plan.{name}={value}" for name, value in named.items())
        title = f"Why not the scenario's own plan{f' with {changes}' if changes else ''}?"
        out.print("", standing_view(result, own, title))
    if "why" in answers:
        out.print("", why_view(result, named, answers["why"]))
    if "rules" in answers:
        out.print("", rules_view(result, answers["rules"]))
    if "sensitivity" in answers:
        out.print("", sensitivity_view(result, answers["sensitivity"]))
    if "pareto" in answers:
        out.print("", pareto_view(result))
