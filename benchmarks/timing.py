"""How long things take on a machine that is shared."""

import time


def seconds(action, repeats=5):
    """Fastest of a few runs. [s]"""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)
