"""PipeDream's problem by trying everything, on machines of one level and of two."""

from functools import cache
from itertools import combinations

from sim.planners.pipedream import one_stage, ring_share, whole_plan


def compositions(total, parts):
    """Ways to write a number as so many of one or more."""
    for cuts in combinations(range(1, total), parts - 1):
        ends = (*cuts, total)
        yield tuple(end - begin for begin, end in zip((0, *cuts), ends, strict=True))


def best_period(profile, levels):
    """The least time per micro-batch over all stages and replications, level by level."""
    layers = profile.layers
    gradients = [layer.weights_bytes if layer.gradients_bytes is None else layer.gradients_bytes for layer in layers]

    @cache
    def best(number, first, last):
        if number < 0:
            return sum(layer.forward_s + layer.backward_s for layer in layers[first:last])
        level, found = levels[number], float("inf")
        for stages in range(1, min(last - first, level.count) + 1):
            for sizes in compositions(last - first, stages):
                for parts in compositions(level.count, stages):
                    found = min(found, period(number, first, sizes, parts))
        return found

    def period(number, first, sizes, parts):
        rate, worst = levels[number].bandwidth_bytes_per_s, 0.0
        for at, (size, m) in enumerate(zip(sizes, parts, strict=True)):
            last = first + size
            reduce = ring_share(m) * sum(gradients[first:last]) / rate
            worst = max(worst, max(best(number - 1, first, last), reduce) / m)
            if at:
                worst = max(worst, 2 * layers[first - 1].output_bytes / rate)
            first = last
        return worst

    return best(len(levels) - 1, 0, len(layers))


def price_plan(profile, level, ends, replicas):
    """A plan that is written down, on a machine of one level: where each stage's layers end, and its workers."""
    stages = zip((0, *ends[:-1]), ends, replicas, strict=True)
    return whole_plan(profile, (level,), [one_stage(profile, level, *each) for each in stages])
