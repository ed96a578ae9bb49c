"""Looks at a machine all the time while a test does its worst to it, and remembers the first thing that was wrong."""
import os
import threading
import time

from machine import Wrong
from wire import Gone


class Observer:
    """Each sample holds: charged + hidden <= limit and granted + hidden <= limit for each budget and GPU, as the daemon lists them; the sum
    of what NVML shows for a session's processes <= the limit that was asked for it; what a GPU has in use <= the sum of the limits.
    """

    def __init__(self, machine, pause=0.0):
        self.machine, self.pause = machine, pause
        self.nvml = machine.watch_nvml()
        self.limits = {}       # session -> bytes per GPU
        self.names = {}        # session -> name
        self.sessions = {}     # pid -> session
        self.samples = self.lists = self.unknown = 0
        self.peak = 0.0        # largest part of a limit that was resident
        self.tolerated = False  # a program goes beyond its own limit on purpose
        self.wrong = None
        self.control = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.loop, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self.stopping.set()
        self.thread.join()
        if self.control is not None:
            self.control.close()
        if kind is None:
            self.check()

    def add(self, budget):
        self.limits[budget.pid] = budget.limit
        self.names[budget.pid] = budget.name or f"session {budget.pid}"

    def check(self):
        if self.wrong is not None:
            raise self.wrong

    def loop(self):
        try:
            while not self.stopping.is_set() and self.wrong is None:
                self.look_at_nvml()
                self.look_at_list()
                self.samples += 1
                if self.pause:
                    time.sleep(self.pause)
        except Wrong as e:
            self.wrong = e
        except Exception as e:  # pylint: disable=broad-except
            self.wrong = Wrong(f"the observer failed: {e!r}")

    def session_of(self, pid):
        try:
            self.sessions[pid] = os.getsid(pid)
        except ProcessLookupError:
            pass  # dead a moment ago: as last known
        return self.sessions.get(pid)

    def resident(self, gpu):
        """{session: bytes} of one GPU at one instant; processes that nobody saw alive are under None."""
        sums = {}
        for pid, size in self.nvml.processes(gpu):
            session = self.session_of(pid)
            sums[session] = sums.get(session, 0) + size
        return sums

    def look_at_nvml(self):
        for gpu in range(len(self.nvml.devices)):
            sums = self.resident(gpu)
            self.unknown += None in sums
            for session, size in sums.items():
                limit = self.limits.get(session)
                if limit is None:
                    continue
                self.peak = max(self.peak, size / limit)
                if size > limit:
                    raise Wrong(f"GPU {gpu}: the processes of {self.names[session]} hold {size} bytes, {size - limit} above their limit {limit}")

    def snapshot(self):
        """What the daemon lists; None while it is away."""
        try:
            if self.control is None:
                self.control = self.machine.control()
            return self.control.ask(op="list")
        except Gone:
            if self.control is not None:
                self.control.close()
            self.control = None
            return None

    def look_at_list(self):
        seen = self.snapshot()
        if seen is None:
            return
        self.lists += 1
        for b in seen["budgets"]:
            for g in b["gpus"]:
                for what in ("charged", "granted"):
                    if g[what] + g["hidden"] > g["limit"] and not self.tolerated:
                        raise Wrong(f"budget {b['budget']}, GPU {g['index']}: {what} {g[what]} and hidden {g['hidden']} are above the limit {g['limit']}")
                if g["resident"] > g["limit"] and not self.tolerated:
                    raise Wrong(f"budget {b['budget']}, GPU {g['index']}: resident {g['resident']} is above the limit {g['limit']}")
        for g in seen["gpus"]:
            if g["assigned"] + g["reserved"] > g["total"]:
                raise Wrong(f"GPU {g['index']}: budgets of {g['assigned']} bytes on {g['total']} less {g['reserved']} in reserve")

    def used(self):
        return [self.nvml.used(g) for g in range(len(self.nvml.devices))]
