"""One simulated machine for a test: its folders, its daemon, the budgets that run on it, and what NVML shows."""
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from wire import Control, Gone

PATIENCE = 30  # seconds that anything may take, on a machine that has better things to do


class Wrong(Exception):
    """A property does not hold."""


class Nvml:
    """The simulated libnvidia-ml.so.1, as any monitor loads it: who has how much, asked of the driver and not of the daemon."""

    class Process(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]

    class Memory(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint), ("total", ctypes.c_ulonglong), ("reserved", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                    ("used", ctypes.c_ulonglong)]

    def __init__(self, prefix):
        self.library = ctypes.CDLL(str(Path(prefix) / "lib/kube-vram/sim/libnvidia-ml.so.1"))
        self.check("nvmlInit_v2", self.library.nvmlInit_v2())
        count = ctypes.c_uint()
        self.check("nvmlDeviceGetCount_v2", self.library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        self.devices = []
        for i in range(count.value):
            device = ctypes.c_void_p()
            self.check("nvmlDeviceGetHandleByIndex_v2", self.library.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(device)))
            self.devices.append(device)
        self.rooms = threading.local()  # a list of its own for each thread: calls run side by side

    @staticmethod
    def check(call, status):
        if status != 0:
            raise Wrong(f"{call} returned {status}")

    def processes(self, gpu):
        """[(pid, bytes)] of one GPU at one instant."""
        room = getattr(self.rooms, "room", None)
        if room is None:
            room = self.rooms.room = (self.Process * 2048)()
        n = ctypes.c_uint(len(room))
        self.check("nvmlDeviceGetComputeRunningProcesses_v3",
                   self.library.nvmlDeviceGetComputeRunningProcesses_v3(self.devices[gpu], ctypes.byref(n), room))
        return [(room[i].pid, room[i].bytes) for i in range(n.value)]

    def used(self, gpu):
        """Bytes of all processes, the driver's reserve not included."""
        memory = self.Memory(version=ctypes.sizeof(self.Memory) | 2 << 24)
        self.check("nvmlDeviceGetMemoryInfo_v2", self.library.nvmlDeviceGetMemoryInfo_v2(self.devices[gpu], ctypes.byref(memory)))
        return memory.used


class Budget:
    """A `vram run` that the test started, in a session of its own, so that its processes are known whatever the daemon says."""

    def __init__(self, machine, memory, gpus, command, stdin=None, name=""):
        self.memory, self.gpus, self.name = memory, gpus, name
        mib = 1 << 20
        self.limit = (memory + gpus - 1) // gpus
        self.limit = (self.limit + mib - 1) // mib * mib
        words = [machine.vram, "run", "--sim", machine.spec, "--memory", str(memory), *(["--gpu", str(gpus)] if gpus > 1 else []), "--", *command]
        self.log = machine.folder / f"budget-{machine.next_number()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, env=machine.env, stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                            start_new_session=True)
        self.pid = self.process.pid  # also of its session

    def line(self, patience=None):
        """The next line it prints; "" at its end. With a patience, only for programs that wait after each line."""
        if patience is not None:
            poll = select.poll()
            poll.register(self.process.stdout, select.POLLIN)
            if not poll.poll(patience * 1000):
                raise Wrong(f"{self.name} said nothing for {patience} s")
        return self.process.stdout.readline().decode(errors="replace").strip()

    def go_on(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def said(self):
        return self.log.read_text(errors="replace").strip()


class Machine:
    def __init__(self, prefix, spec):
        self.prefix, self.spec = Path(prefix).resolve(), spec
        self.vram = str(self.prefix / "bin/vram")
        self.folder = Path(tempfile.mkdtemp(prefix="kv-test.", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        self.run, self.state, self.sim = (self.folder / n for n in ("run", "state", "sim"))
        for f in (self.run, self.state, self.sim):
            f.mkdir(mode=0o700)
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("KUBE_VRAM_", "CUDA_", "LD_"))}
        # The programs' prefix has no vram-node: a `vram run` that finds no daemon must not start one behind the test's back.
        shadow = self.folder / "prefix"
        shadow.mkdir()
        for part in ("lib", "share"):
            (shadow / part).symlink_to(self.prefix / part)
        self.env = {**keep, "KUBE_VRAM_RUN_DIR": str(self.run), "KUBE_VRAM_STATE_DIR": str(self.state), "KUBE_VRAM_SIM_DIR": str(self.sim),
                    "KUBE_VRAM_PREFIX": str(shadow)}
        self.daemon = None
        self.daemon_log = (self.folder / "daemon.log").open("ab")
        self.number = 0
        self.budgets = []

    def __enter__(self):
        # Ended from outside, it still ends what it started.
        for name in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, lambda number, frame: sys.exit(128 + number))
        return self

    def __exit__(self, kind, error, trace):
        for b in self.budgets:
            if b.process.poll() is None:
                # The session's leader has not been waited for: its number is still its own.
                os.killpg(b.pid, signal.SIGKILL)
                b.process.wait()
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.terminate()
            try:
                self.daemon.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
        self.daemon_log.close()
        if kind is not None:
            tail = (self.folder / "daemon.log").read_text(errors="replace").splitlines()[-20:]
            print("the daemon's last lines:", *tail, sep="\n  ")
        shutil.rmtree(self.folder, ignore_errors=True)

    def next_number(self):
        self.number += 1
        return self.number

    # The daemon

    @property
    def socket(self):
        return str(self.run / "sim/node.sock")

    def start_daemon(self, wait=True):
        env = {**self.env, "KUBE_VRAM_PREFIX": str(self.prefix)}
        self.daemon = subprocess.Popen([str(self.prefix / "bin/vram-node"), "--local", "--sim", self.spec], env=env,
                                       stdin=subprocess.DEVNULL, stdout=self.daemon_log, stderr=self.daemon_log)
        if wait:
            self.await_daemon()

    def await_daemon(self):
        def ready():
            if self.daemon.poll() is not None:
                raise Wrong(f"the daemon ended by itself with status {self.daemon.returncode}")
            try:
                self.control().close()
                return True
            except Gone:
                return False
        self.until("the daemon answers", ready)

    def kill_daemon(self):
        self.daemon.kill()
        self.daemon.wait()

    def control(self):
        return Control(self.socket)

    def watch_nvml(self):
        """NVML in this very process."""
        os.environ.update({"KUBE_VRAM_SIM": self.spec, "KUBE_VRAM_SIM_DIR": str(self.sim)})
        return Nvml(self.prefix)

    # Budgets

    def start(self, memory, gpus, command, stdin=None, name=""):
        budget = Budget(self, memory, gpus, command, stdin, name)
        self.budgets.append(budget)
        return budget

    def program(self, name):
        return str(self.prefix / "tests/programs" / name)

    @staticmethod
    def until(what, ask, patience=PATIENCE):
        give_up = time.monotonic() + patience
        pause = 0.001
        while time.monotonic() < give_up:
            answer = ask()
            if answer:
                return answer
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        raise Wrong(f"waited {patience} s in vain until {what}")
