"""Flows that come and go: the state an engine of discrete events asks when the next flow will be done.

Rates change with every arrival and departure, but only what an event can touch is computed anew. A link is *contended*
when the flows on it could together ask for more than it carries, each limited by the narrowest link of its path; any
other link constrains nobody. Flows influence each other through contended links alone, so an event changes the rates of
the flows it reaches over them; and of these none that was frozen, when rates were filled, below the level of the flow
that comes or goes, because up to there the filling goes as before.
"""

from __future__ import annotations

import numpy as np

from sim.errors import FlopcastError, SpecError
from sim.network.contention import SLACK, Contention
from sim.network.flows import FloatArray, Flows, IntArray, fill

_MANY = 64
"""Flows reached by an event beyond which all are taken to be reached: searching on would cost more than it saves."""
_ARRAYS = ("_active", "_share", "_bytes", "_left", "_rate", "_level", "_since", "_finish")


class FlowNetwork:
    """Links, the flows on them now, and a clock. [s, bytes]

    Flows are known by numbers, which are given out again after a flow has ended. An engine's loop:

        time = min(next_event_s, network.next_completion())
        for flow in network.advance(time): ...  # those that are done; their waiters may add others
        network.add(flows, nbytes)

    Parameters
    ----------
    capacity : array
        Of every link. [bytes/s]
    done_share : float
        Share of a flow's bytes that may be left when it counts as done, so that flows alike end together. A larger one
        (0.01) is a fast approximation where thousands of unlike flows end one by one.
    """

    def __init__(self, capacity: FloatArray, done_share: float = 1e-9) -> None:
        self.now = 0.0
        self._done_share = done_share
        self._capacity = np.array(capacity, dtype=float)
        self._contention = Contention(self._capacity)
        self._link_bytes = np.zeros(len(self._capacity))
        self._used = np.zeros(len(self._capacity))
        self._links: list[IntArray] = []
        self._loads: list[FloatArray] = []
        self._free: list[int] = []
        # Flows to look at again, and the level below which nothing has changed since they were marked.
        self._dirty: dict[int, None] = {}
        self._floor = np.inf
        self._active = np.zeros(64, dtype=bool)
        self._share, self._bytes, self._left, self._rate, self._level, self._since, self._finish = (
            np.zeros(64) for _ in range(7)
        )
        self._finish[:] = np.inf

    @property
    def num_flows(self) -> int:
        """Flows under way."""
        return len(self._links) - len(self._free)

    @property
    def link_bytes(self) -> FloatArray:
        """Bytes every link has carried so far. [bytes]"""
        self._settle(np.flatnonzero(self._active))
        carried: FloatArray = self._link_bytes.copy()
        return carried

    @property
    def link_bytes_per_s(self) -> FloatArray:
        """What every link carries now. [bytes/s]"""
        self._refresh()
        in_use: FloatArray = self._used.copy()
        return in_use

    def add(self, flows: Flows, nbytes: FloatArray | float) -> IntArray:
        """Start flows now.

        Parameters
        ----------
        flows : Flows
        nbytes : float or array
            To move, by flow. [bytes]

        Returns
        -------
        array of int
            Their numbers.

        Raises
        ------
        SpecError
            Negative bytes.
        """
        sizes = np.broadcast_to(np.asarray(nbytes, dtype=float), flows.num_flows)
        if flows.num_flows and not sizes.min() >= 0:
            raise SpecError(f"a flow of {sizes.min()} bytes: the bytes of a flow cannot be negative")
        bounds = np.searchsorted(flows.flow, np.arange(flows.num_flows + 1))
        numbers = np.array([self._number() for _ in range(flows.num_flows)], dtype=int)
        self._active[numbers] = True
        self._share[numbers] = flows.share
        self._bytes[numbers] = self._left[numbers] = sizes
        self._rate[numbers], self._since[numbers], self._finish[numbers] = 0.0, self.now, np.inf
        self._level[numbers] = np.inf  # not known yet
        for flow, number in enumerate(numbers.tolist()):
            entries = slice(bounds[flow], bounds[flow + 1])
            self._links[number], self._loads[number] = flows.link[entries], flows.load[entries]
            self._join(number)
        self._dirty.update(dict.fromkeys(numbers.tolist()))
        return numbers

    def remove(self, numbers: IntArray) -> FloatArray:
        """Stop flows now, finished or not; what each still had to move.  [bytes]"""
        numbers = np.asarray(numbers, dtype=int)
        self._settle(numbers)
        self._use(numbers, -self._rate[numbers])
        left: FloatArray = self._left[numbers].copy()
        for number in numbers.tolist():
            self._used[self._leave(number)] = 0.0  # an empty link has nothing left of what rounding adds up to
            self._links[number] = self._loads[number] = np.empty(0, dtype=int)
            self._free.append(number)
        self._active[numbers] = False
        self._rate[numbers], self._finish[numbers] = 0.0, np.inf
        return left

    def set_capacity(self, links: IntArray, bytes_per_s: FloatArray | float) -> None:
        """Change links now: a slow cable, a lost one (0), one that is back."""
        links = np.atleast_1d(np.asarray(links, dtype=int))
        touched = dict.fromkeys(flow for link in links.tolist() for flow in self._contention.flows_on(link))
        for flow in touched:
            self._leave(flow)
        self._capacity[links] = bytes_per_s
        for flow in touched:
            self._join(flow)
        self._dirty.update(touched)
        self._floor = 0.0

    def next_completion(self) -> float:
        """When the next flow will be done if none comes or goes before; infinite if none will.  [s]"""
        self._refresh()
        return float(self._finish.min())

    def advance(self, time_s: float) -> IntArray:
        """Move the clock and take out the flows that are done by then.

        Parameters
        ----------
        time_s : float
            No later than `next_completion()`. [s]

        Returns
        -------
        array of int
            Flows that end at this time, in ascending order.

        Raises
        ------
        FlopcastError
            The time lies in the past, or a flow ends before it.
        """
        completion = self.next_completion()
        if not self.now <= time_s <= completion:
            raise FlopcastError(
                f"cannot advance from {self.now} s to {time_s} s: a flow ends at {completion} s; stop there first"
            )
        self.now = time_s
        if time_s < completion:
            return np.empty(0, dtype=int)
        running = np.flatnonzero(np.isfinite(self._finish))
        left = self.left(running)
        done = running[(self._finish[running] <= time_s) | (left <= self._done_share * self._bytes[running])]
        self._settle(done)
        self._book(done, self._left[done])  # the last bytes that rounding left
        self._left[done] = 0.0
        self.remove(done)
        return done

    def rates(self, numbers: IntArray) -> FloatArray:
        """Of flows, now. [bytes/s]"""
        self._refresh()
        rates: FloatArray = self._rate[numbers].copy()
        return rates

    def left(self, numbers: IntArray) -> FloatArray:
        """What flows still have to move. [bytes]"""
        self._refresh()
        left: FloatArray = self._left[numbers] - self._moved(numbers)
        return left

    def _number(self) -> int:
        if self._free:
            return self._free.pop()
        number = len(self._links)
        self._links.append(np.empty(0, dtype=int))
        self._loads.append(np.empty(0, dtype=int))
        if number == len(self._active):
            for name in _ARRAYS:
                old = getattr(self, name)
                fresh = np.full(len(old), np.inf) if name == "_finish" else np.zeros_like(old)
                setattr(self, name, np.concatenate([old, fresh]))
        return number

    def _join(self, number: int) -> None:
        """Enter a flow on its links."""
        self._contention.join(number, self._links[number], self._loads[number], float(self._share[number]))

    def _leave(self, number: int) -> list[int]:
        """Take a flow off its links and mark those it contended with; links that are now empty."""
        share = float(self._share[number])
        rivals, empty = self._contention.leave(number, self._links[number], self._loads[number], share)
        self._floor = min(self._floor, float(self._level[number]))
        self._dirty.update(rivals)
        self._dirty.pop(number, None)
        return empty

    def _moved(self, numbers: IntArray) -> FloatArray:
        """What flows have moved since their rates last changed."""
        elapsed = self.now - self._since[numbers]
        moved = np.zeros(len(numbers))
        np.multiply(self._rate[numbers], elapsed, out=moved, where=elapsed > 0)
        return np.asarray(np.minimum(moved, self._left[numbers]))

    def _settle(self, numbers: IntArray) -> None:
        """Book what flows have moved since their rates last changed."""
        moved = self._moved(numbers)
        self._since[numbers] = self.now
        self._left[numbers] -= moved
        self._book(numbers[moved > 0], moved[moved > 0])

    def _book(self, numbers: IntArray, moved: FloatArray) -> None:
        if numbers.size:
            flow, link, load = self._entries(numbers)
            np.add.at(self._link_bytes, link, load * moved[flow])

    def _entries(self, numbers: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
        """(place in `numbers`, link, load) of everything that flows put on links."""
        links = [self._links[number] for number in numbers.tolist()]
        loads = [self._loads[number] for number in numbers.tolist()]
        flow = np.repeat(np.arange(len(links)), [len(each) for each in links])
        return flow, np.concatenate(links), np.concatenate(loads)

    def _use(self, numbers: IntArray, change: FloatArray) -> None:
        """Note a change of rates on the links."""
        finite = np.isfinite(change)
        if finite.any():
            flow, link, load = self._entries(numbers[finite])
            np.add.at(self._used, link, load * change[finite][flow])

    def _refresh(self) -> None:
        """Rates anew for every flow that flows marked dirty reach over contended links, down to the floor."""
        if not self._dirty:
            self._floor = np.inf
            return
        self._floor = min([self._floor, *map(self._least_level, self._dirty)])
        numbers = self._reached(self._floor * (1 - SLACK))
        self._dirty.clear()
        self._floor = np.inf
        if not numbers.size:
            return
        flow, link, load = self._entries(numbers)
        links, link = np.unique(link, return_inverse=True)
        before = np.where(np.isfinite(self._rate[numbers]), self._rate[numbers], 0.0)
        theirs = np.bincount(link, load * before[flow], minlength=len(links))
        free = np.maximum(self._capacity[links] - (self._used[links] - theirs), 0.0)
        rates = fill(Flows(len(numbers), flow, link, load, self._share[numbers]), free)
        self._level[numbers] = rates / self._share[numbers]
        changed = rates != self._rate[numbers]
        numbers, rates = numbers[changed], rates[changed]
        self._settle(numbers)
        self._use(numbers, rates - self._rate[numbers])
        self._rate[numbers] = rates
        wait = np.full(len(numbers), np.inf)
        np.divide(self._left[numbers], rates, out=wait, where=rates > 0)
        wait[self._left[numbers] == 0] = 0.0
        self._finish[numbers] = self.now + wait

    def _least_level(self, number: int) -> float:
        """A level below which a marked flow cannot have changed what others get: for a new one, what it is sure of."""
        if self._level[number] < np.inf:
            return np.inf
        return self._contention.least_level(self._links[number])

    def _reached(self, floor: float) -> IntArray:
        """Flows whose rates may differ, ascending: those marked, and all they share contended links with, and so on.

        None whose level is below the floor, and none that is reached over such a one alone.
        """
        reached = {flow: None for flow in self._dirty if self._level[flow] >= floor}
        edge = list(reached)
        seen: set[int] = set()
        while edge and len(reached) <= _MANY:
            for link in self._links[edge.pop()].tolist():
                if link not in seen and self._contention.is_contended(link):
                    seen.add(link)
                    new = [o for o in self._contention.flows_on(link) if o not in reached and self._level[o] >= floor]
                    reached.update(dict.fromkeys(new))
                    edge += new
        if edge:
            return np.flatnonzero(self._active & (self._level >= floor))
        return np.sort(np.fromiter(reached, dtype=int, count=len(reached)))
