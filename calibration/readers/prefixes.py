"""What launchers and log collectors put before a program's lines: ranks, hosts, times. Taken off, and the task kept."""

from __future__ import annotations

import re

#: A prefix that names the task whose line it is, in its first group.
_TASKS = (
    re.compile(r"\s*(\d+):(?: |$)"),  # srun -l
    re.compile(r"\[([^\]\s]*\d+,\d+)\](?:\[[^\]]*\])?<std\w+>\s*:? ?"),  # mpirun --tag-output
    re.compile(r"\[(\d+)\] ?(?!NCCL)"),  # Hydra -prepend-rank
    re.compile(r"(?=\S*[A-Za-z])([\w./-]+) +\| ?"),  # docker compose, stern
    re.compile(r"\(([^()]*\bpid=\d+[^()]*)\) ?"),  # Ray, SkyPilot
)
#: mpirun puts its tag in the middle of a line that came in two pieces.
_TORN = re.compile(r"\[\d+,\d+\](?:\[[^\]]*\])?<std\w+>:? ?")
_TIMES = (
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:? ?"),
    re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?:? "),
    re.compile(r"(?:- )?\[?(?:DEBUG|INFO|NOTICE|WARN(?:ING)?)\]?[: ] *(?!NCCL)(?:- )?"),
)


def without_prefix(line: str) -> tuple[str, str]:
    """A line's task ("" where nothing names it) and the line as the program printed it.

    >>> without_prefix(" 3: #  Rank  3 Pid  7")
    ('3', '#  Rank  3 Pid  7')
    >>> without_prefix("2024-05-01 12:00:00 [1,0]<stdout>:  1048576")
    ('1,0', ' 1048576')
    """
    tasks: list[str] = []
    while True:
        for pattern in (*_TASKS, *_TIMES):
            match = pattern.match(line)
            if match and match.end():
                if pattern in _TASKS:
                    tasks.append(match[1].strip())
                line = line[match.end() :]
                break
        else:
            return "/".join(tasks), _TORN.sub("", line) if tasks else line
