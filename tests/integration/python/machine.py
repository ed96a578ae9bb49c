"""A simulated machine of its own for each test: run, state and simulation folders, programs in budgets or beside them."""
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATIENCE = 60  # seconds; only a broken build takes that long


class Program:
    """probe.py, wherever it runs."""

    def __init__(self, command, env, folder):
        self.errors = tempfile.TemporaryFile("w+", dir=folder)
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        self.pending = b""

    def ask(self, do, **more):
        self.process.stdin.write((json.dumps({"do": do, **more}) + "\n").encode())
        self.process.stdin.flush()
        answer = json.loads(self._line())
        if "error" in answer:
            raise AssertionError(f"{do} {more}: {answer['error']}\n{self.said()}")
        return answer

    def _line(self):
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self.pending:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not piece:
                raise AssertionError(f"no answer from {' '.join(map(str, self.process.args))} (status {self.process.poll()})\n{self.said()}")
            self.pending += piece
        line, self.pending = self.pending.split(b"\n", 1)
        return line

    def said(self):
        self.errors.seek(0)
        return self.errors.read()

    def end(self):
        """Its exit status."""
        self.process.stdin.close()
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process.stdout.close()
            self.errors.close()


class Machine:
    def __init__(self, prefix, python, spec):
        self.prefix = Path(prefix).resolve()
        self.python = python
        self.spec = spec
        self.folder = tempfile.mkdtemp(prefix="kv-python-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.programs = []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("KUBE_VRAM_", "CUDA_", "LD_"))}
        for name in ("RUN", "STATE", "SIM"):
            os.mkdir(f"{self.folder}/{name.lower()}", 0o700)
            self.env[f"KUBE_VRAM_{name}_DIR"] = f"{self.folder}/{name.lower()}"

    def close(self):
        for program in reversed(self.programs):
            program.end()
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([self.prefix / "bin/vram", "daemon", "stop", "--force", "--sim", self.spec], env=self.env, timeout=PATIENCE,
                           capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, command, env):
        self.programs.append(Program(command, env, self.folder))
        return self.programs[-1]

    def in_budget(self, memory, *options):
        """probe.py under `vram run`."""
        command = [self.prefix / "bin/vram", "run", "--sim", self.spec, "--memory", str(memory), *options, "--", self.python, HERE / "probe.py"]
        return self._start(command, self.env)

    def outside(self):
        """probe.py on the simulated driver itself, without a budget: to kube-vram it is foreign."""
        env = {**self.env, "KUBE_VRAM_SIM": self.spec, "LD_LIBRARY_PATH": str(self.prefix / "lib/kube-vram/sim")}
        return self._start([self.python, HERE / "probe.py"], env)

    def vram(self, *arguments):
        """The JSON that a vram command prints."""
        done = subprocess.run([self.prefix / "bin/vram", *arguments, "--sim", self.spec, "-o", "json"], env=self.env, capture_output=True,
                              text=True, timeout=PATIENCE, check=False)
        if done.returncode != 0:
            raise AssertionError(f"vram {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)


def eventually(check, seconds=10):
    """check() until it is true; its last value. For what the daemon learns by looking now and then."""
    deadline = time.monotonic() + seconds
    value = check()
    while not value and time.monotonic() < deadline:
        time.sleep(0.02)
        value = check()
    return value


def namespaces_allowed():
    """Whether this system lets us make a mount namespace at all."""
    for flags in ("-m", "-Um"):
        if subprocess.run(["unshare", flags, "true"], capture_output=True, check=False).returncode == 0:
            return True
    return False
