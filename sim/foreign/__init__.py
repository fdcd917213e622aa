"""Files of other tools: `importers` read them as scenarios, `exporters` write plans in their words."""
