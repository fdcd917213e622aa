"""How long things take on a machine that is shared."""

import resource
import subprocess
import time


def seconds(action, repeats=5):
    """Fastest of a few runs. [s]"""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def cpu_seconds(command, repeats=5):
    """Least user and system time of a few runs of a process, which waiting for others on the machine does not count."""

    def spent():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    times = []
    for _ in range(repeats):
        start = spent()
        subprocess.run(command, check=True, capture_output=True)
        times.append(spent() - start)
    return min(times)
