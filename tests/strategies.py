"""Random orders of any registered schedule, of sizes that it takes."""

from hypothesis import assume
from hypothesis import strategies as st

from sim.schedules import build_order, get_schedule, schedule_names


@st.composite
def sizes(draw, name, most_ranks=7):
    """(p, v, m) that the schedule takes."""
    chosen = get_schedule(name)
    rounds = name in ("interleaved", "zb_interleaved")  # chunks on several ranks, micro-batches in rounds of them
    p = draw(st.integers(1 + rounds, most_ranks))
    p += p % 2 * (name in ("chimera", "dualpipe"))
    v = draw(st.integers(1 + rounds, 4)) if chosen.chunks == "many" else 1 if chosen.chunks == "one" else chosen.chunks
    v += v % 2 * (name == "hanayo")
    multiples = st.integers(1, 4).map(lambda times: times * p)
    m = draw(multiples if rounds else st.integers(1, 20) | multiples | st.integers(2 * p, 2 * p + 6))
    m += m % chosen.copies
    assume(chosen.requirement(p, v, m) is None)
    return p, v, m


@st.composite
def orders(draw, names=None, most_ranks=6):
    """An order of any schedule, of a size it takes."""
    name = draw(st.sampled_from(names or schedule_names()))
    options = {"slices": draw(st.integers(1, 3))} if "slices" in get_schedule(name).options else {}
    p, v, m = draw(sizes(name, most_ranks))
    if "stages" in get_schedule(name).options:  # the last round over the ranks may be incomplete
        options["stages"] = draw(st.integers(max(p, p * (v - 1) + 1), p * v))
    return build_order(name, p, v, m, **options)
