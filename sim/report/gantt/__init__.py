"""A step drawn as a Gantt chart: one table of bars, drawn by matplotlib, in a terminal, and written as a trace.

`step_view` is what there is to show, `chart` its bars, the stretches of time that are drawn, and the chart in a
terminal; `figure` draws them with matplotlib; `trace` writes all of it for Perfetto.
"""

from sim.report.gantt.chart import StepView, gantt_text, step_view
from sim.report.gantt.figure import comparison_figure, gantt_figure
from sim.report.gantt.trace import write_trace

__all__ = ["StepView", "comparison_figure", "gantt_figure", "gantt_text", "step_view", "write_trace"]
