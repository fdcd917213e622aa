"""A scenario as what an engineer pastes next: which framework, its exporter, the text and the account of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sim.errors import FlopcastError, SpecError, nearest
from sim.foreign.exporters.account import Account, exporter_table
from sim.foreign.exporters.megatron import export_megatron_bridge, export_megatron_lm
from sim.foreign.exporters.torchtitan import export_torchtitan
from sim.foreign.importers.ledger import entry_lines, short
from sim.specs.scenario import Scenario


def _deepspeed(account: Account) -> tuple[str, dict[str, Any]]:
    """DeepSpeed's JSON, and what stands in it; the model stands in the training program."""
    offload = account.scenario.plan.optimizer_offload
    part = {"ratio": offload} if offload < 1 else {}
    data = account.data({"offload": {"device": "cpu", "pin_memory": True, **part}})
    return json.dumps(data, indent=2) + "\n", data


_EXPORTERS: dict[str, Callable[[Account], tuple[str, dict[str, Any]]]] = {
    "megatron-lm": export_megatron_lm,
    "megatron-bridge": export_megatron_bridge,
    "torchtitan": export_torchtitan,
    "deepspeed": _deepspeed,
}
"""Framework -> what gives the text, and the same as plain data."""
FRAMEWORKS = tuple(_EXPORTERS)
"""What a scenario can be exported to."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A scenario in a framework's words.

    kind : one of FRAMEWORKS.
    text : the file, without its account.
    data : the same as plain data.
    own : the plan that the user runs so far, in the same words.
    """

    kind: str
    text: str
    data: dict[str, Any]
    account: Account
    own: Exported | None = None

    def with_account(self) -> str:
        """The file with its account as comments at the head; as it is, where the format has no comments."""
        if self.kind == "deepspeed":
            return self.text
        head = ["#!/bin/bash"] if self.kind.startswith("megatron") else []
        return "\n".join([*head, *(f"# {line}" for line in self.account_lines()), "", self.text])

    def beside_own(self, own: Scenario) -> Exported:
        """Return the same with a line for every option that a script of the plan `own` must lose, change or gain."""
        try:
            return replace(self, own=export_scenario(own, self.kind))
        except FlopcastError:  # the framework cannot run that plan, so no script has it
            return self

    def _change_lines(self) -> list[str]:
        if self.own is None:
            return []
        before, after = ({entry.name: entry.value for entry in each.account.written} for each in (self.own, self))
        changed = [name for name in after if name in before and after[name] != before[name]]
        found = {
            "remove": [f"{name} {before[name]}".strip() for name in before if name not in after],
            "change": [f"{name} from {before[name]} to {after[name]}" for name in changed],
            "add": [f"{name} {after[name]}".strip() for name in after if name not in before],
        }
        if not any(found.values()):
            return ["A script of your own plan stays as it is: this plan has the same options."]
        lines = [f"  {verb}: {', '.join(names)}" for verb, names in found.items() if names]
        return ["What to change in a script of your own plan, which may spell an option otherwise:", *lines]

    def to_dict(self) -> dict[str, Any]:
        """Text, data and account as plain data."""
        account = self.account
        entries = {"written": account.written, "decided": account.decided, "unsaid": account.unsaid}
        return {
            "framework": self.kind,
            "text": self.text,
            "data": self.data,
            **{name: [entry.plain() for entry in listed] for name, listed in entries.items()},
            "yours": [{"name": entry.name, "note": entry.note} for entry in account.yours],
        }

    def account_lines(self) -> list[str]:
        """What the framework decides itself, what is left out and what is to be given, in words."""
        account = self.account
        scenario = account.scenario
        lines = [f"{short(scenario.name)} for {account.title}, on {scenario.plan.num_gpus:,} GPUs. By flopcast."]
        lines += exporter_table(self.kind).get("notes", ())
        for title, entries in (
            (f"{account.title} decides itself", account.decided),
            ("Left out", account.unsaid),
            ("To be given", account.yours),
        ):
            lines += [f"{title}:"] if entries else []
            grouped = entries is not account.decided
            lines += [f"  {line}" for line in entry_lines(entries, by_note=grouped, names_first=True)]
        return [*lines, *self._change_lines()]


def export_scenario(scenario: Scenario, framework: str) -> Exported:
    """A scenario's plan as the file or the options that a framework takes.

    Parameters
    ----------
    scenario : Scenario
        With the plan that is to be run.
    framework : str
        One of `FRAMEWORKS`: megatron-lm, megatron-bridge, torchtitan, deepspeed.

    Returns
    -------
    Exported
        The text, and the account of it.

    Raises
    ------
    SpecError
        There is no such exporter, or the framework cannot run the plan: every reason, and the nearest that it can run.
    """
    check_framework(framework)
    scenario.require_plan()
    account = Account(framework, scenario)
    account.refuse_by_tables()
    text, data = _EXPORTERS[framework](account)
    return Exported(framework, text, data, account)


def check_beside_plan(scenario: Scenario, framework: str) -> None:
    """Refuse a scenario whose model or training a framework cannot run, whatever its plan is. Raises SpecError: every
    such reason."""
    try:
        export_scenario(scenario, framework)
    except SpecError as error:
        lines = [line for line in str(error).splitlines() if " cannot run plan." not in line]
        if lines:
            raise SpecError("\n".join(lines)) from None


def check_framework(name: str) -> None:
    """Refuse a name that no exporter has. Raises SpecError: the nearest that there is."""
    if name not in _EXPORTERS:
        raise SpecError(f"cannot export to {name!r}{nearest(name, FRAMEWORKS)}")
