"""A simulated machine of its own for each test, and the programs that run on it."""
import contextlib
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

PATIENCE = 30  # seconds; only a broken build takes that long
GIB = 1 << 30


def wait_for(what, probe, patience=PATIENCE):
    """The first true value of probe()."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        value = probe()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {patience} s in vain: {what}")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Machine:
    def __init__(self, prefix, spec="1xA10", **more):
        self.prefix = Path(prefix).resolve()
        self.vram = str(self.prefix / "bin/vram")
        self.alloc = str(self.prefix / "tests/programs/alloc")
        self.alloc_dl = str(self.prefix / "tests/programs/alloc_dl")
        self.folder = tempfile.mkdtemp(prefix="kv-cli-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.started = []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("KUBE_VRAM_", "CUDA_", "LD_"))}
        self.env.update(KUBE_VRAM_PREFIX=str(self.prefix), TERM="xterm", LC_ALL="C.UTF-8")
        if spec:
            self.env["KUBE_VRAM_SIM"] = spec
        for name in ("RUN", "STATE", "SIM"):
            os.mkdir(f"{self.folder}/{name.lower()}", 0o700)
            self.env[f"KUBE_VRAM_{name}_DIR"] = f"{self.folder}/{name.lower()}"
        self.env.update(more)

    def __call__(self, *words, check=None, env=None, **more):
        """Runs vram with these words; `check` is the exit status that is expected."""
        done = subprocess.run([self.vram, *words], env={**self.env, **(env or {})}, capture_output=True, text=True, timeout=PATIENCE * 2,
                              stdin=subprocess.DEVNULL, check=False, **more)
        if check is not None and done.returncode != check:
            raise AssertionError(f"vram {' '.join(words)}: status {done.returncode}, not {check}\n{done.stdout}{done.stderr}")
        return done

    def start(self, *words, env=None, **more):
        """vram in the background, its streams as pipes; ended with the test."""
        more.setdefault("preexec_fn", lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # ignored in a background job of a shell
        program = subprocess.Popen([self.vram, *words], env={**self.env, **(env or {})}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, **more)
        self.started.append(program)
        return program

    def json(self, *words):
        return json.loads(self(*words, "-o", "json", check=0).stdout)

    def budgets(self):
        return self.json("ps")["budgets"]

    def free(self, gpu=0):
        return self.json("gpus")["gpus"][gpu]["free"]

    def close(self):
        for program in self.started:
            if program.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    program.send_signal(signal.SIGCONT)
                    program.kill()
            with contextlib.suppress(subprocess.TimeoutExpired, OSError, ValueError):
                program.communicate(timeout=PATIENCE)
        with contextlib.suppress(OSError, subprocess.SubprocessError, AssertionError):
            self("daemon", "stop", "--force")
        shutil.rmtree(self.folder, ignore_errors=True)


class Terminal:
    """A program at a pseudo-terminal of its own session."""

    def __init__(self, command, env, rows=24, columns=80):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execvpe(command[0], command, env)
        self.resize(rows, columns)
        self.seen = ""

    def resize(self, rows, columns):
        import fcntl
        import struct
        import termios
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, text, patience=PATIENCE, more=False):
        """Everything seen so far once it has the text; with `more`, after at least one more piece."""
        deadline = time.monotonic() + patience
        while more or text not in self.seen:
            if not select.select([self.fd], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"{text!r} never came, but:\n{self.seen}")
            try:
                piece = os.read(self.fd, 65536)
            except OSError:
                piece = b""
            if not piece:
                raise AssertionError(f"{text!r} never came; the terminal closed after:\n{self.seen}")
            self.seen += piece.decode(errors="replace")
            more = False
        return self.seen

    def forget(self):
        self.seen = ""

    def type(self, text):
        os.write(self.fd, text.encode())

    def status(self):
        """Waits for the end; the exit status, or minus the signal."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.02)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self.fd, 65536).decode(errors="replace")
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"the program did not end; it said:\n{self.seen}")
