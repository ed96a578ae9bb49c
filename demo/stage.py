"""What the demo stands on: it starts and ends programs, reads `vram ... -o json`, draws, and compares figures."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PATIENCE = 10  # seconds that anything may take


class Off(Exception):
    """A figure is off, or something did not happen."""


def human(count):
    """As the programs print it: at most one decimal ("2.4Gi")."""
    for suffix, size in (("Ti", GIB * 1024), ("Gi", GIB), ("Mi", MIB), ("Ki", KIB)):
        if count >= size:
            text = f"{(count * 10 + size // 2) // size / 10:.1f}"
            return (text[:-2] if text.endswith(".0") else text) + suffix
    return str(count)


class Process:
    """A program of the story; its output goes to a file, so that it never waits for a reader."""

    def __init__(self, name, command, env, folder):
        self.name = name
        self.path = Path(folder) / f"{name}.out"
        with self.path.open("wb") as out:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        self.pid = self.process.pid

    def output(self):
        return self.path.read_text(encoding="utf-8", errors="replace")

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()


class Stage:
    def __init__(self, prefix, card, keep_going):
        self.prefix = Path(prefix).resolve()
        self.card = card
        self.keep_going = keep_going
        self.colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.scenes = self.passed = self.failed = 0
        self.processes = []
        self.outside = None
        self.folder = None
        self.env = None

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="kube-vram-demo.")
        sim = tempfile.mkdtemp(prefix="kube-vram-demo.", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("KUBE_VRAM_", "CUDA_", "LD_"))}
        self.env = {**keep, "KUBE_VRAM_RUN_DIR": f"{self.folder}/run", "KUBE_VRAM_STATE_DIR": f"{self.folder}/state",
                    "KUBE_VRAM_SIM_DIR": sim, "KUBE_VRAM_PREFIX": str(self.prefix)}
        for name in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, lambda number, frame: sys.exit(128 + number))
        return self

    def __exit__(self, kind, error, trace):
        for process in self.processes:
            process.end()
        subprocess.run(self.command("daemon", "stop", "--force"), env=self.env, capture_output=True, check=False)
        for folder in (self.folder, self.env["KUBE_VRAM_SIM_DIR"]):
            shutil.rmtree(folder, ignore_errors=True)
        if kind is Off:
            self.failed += 1
            print(self.paint("1;31", f"\nThe demo failed: {error}"), file=sys.stderr)
            return True
        return False

    # Running things

    def command(self, *words):
        """vram COMMAND --sim CARD ...: with the simulated driver, which is used only where asked for."""
        return [str(self.prefix / "bin" / "vram"), words[0], "--sim", self.card, *words[1:]]

    def program(self, name):
        return str(self.prefix / "tests" / "programs" / name)

    def typed(self, words):
        """The command as a person would have typed it, with programs on their PATH."""
        return "$ " + " ".join(os.path.basename(w) if w.startswith("/") else w for w in self.command(*words))

    def run(self, *words):
        """Runs and shows a vram command."""
        print(self.paint("1;36", self.typed(words)), flush=True)
        done = subprocess.run(self.command(*words), env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              timeout=PATIENCE)
        print(done.stdout + done.stderr, end="", flush=True)
        return done

    def show(self, *words):
        """Runs a vram command on this terminal, so that it draws as it would for a person."""
        print(self.paint("1;36", self.typed(words)), flush=True)
        if subprocess.run(self.command(*words), env=self.env, check=False, timeout=PATIENCE).returncode != 0:
            raise Off(f"`{self.typed(words)}` failed")

    def json(self, *words):
        done = subprocess.run(self.command(*words, "-o", "json"), env=self.env, capture_output=True, text=True, check=False, timeout=PATIENCE)
        if done.returncode != 0:
            raise Off(f"`{self.typed(words)} -o json` failed: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def start(self, name, *words):
        print(self.paint("1;36", self.typed(words) + " &"), flush=True)
        self.processes.append(Process(name, self.command(*words), self.env, self.folder))
        return self.processes[-1]

    def start_outside(self, *words):
        """A program that opens the (simulated) driver itself: no budget, no guard."""
        print(self.paint("1;36", "$ vram-sim " + " ".join(words) + " &"), flush=True)
        command = [str(self.prefix / "bin" / "vram-sim"), *words]
        self.outside = Process("outside", command, {**self.env, "KUBE_VRAM_SIM": self.card}, self.folder)
        self.processes.append(self.outside)
        return self.outside

    def until(self, what, ask):
        """The first true answer of ask()."""
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            answer = ask()
            if answer:
                return answer
            time.sleep(0.01)
        raise Off(f"waited {PATIENCE} s in vain until {what}")

    def holding(self, process, at_least=0):
        """Waits until the program holds its memory; the bytes that it says it was granted."""
        def ready():
            if not process.alive():
                raise Off(f"{process.name} ended with status {process.process.returncode}:\n{process.output()}")
            return "holding" in process.output()
        self.until(f"{process.name} holds its memory", ready)
        total = int(next(line.split()[1] for line in process.output().splitlines() if line.startswith("total ")))
        if total < at_least:
            raise Off(f"{process.name} was granted {total} bytes, not {at_least}")
        return total

    # Facts

    def gpu(self):
        return self.json("gpus")["gpus"][0]

    def budget(self, process):
        for budget in self.json("ps")["budgets"]:
            if process.pid in (p["pid"] for p in budget["processes"]):
                return budget
        raise Off(f"vram ps lists no budget with the process of {process.name} (pid {process.pid})")

    def share(self, process):
        return self.budget(process)["gpus"][0]

    def context_bytes(self):
        """What a context takes on this card, as `vram gpus` shows it."""
        return self.gpu()["context_reserve"]

    # Words and figures

    def paint(self, style, text):
        return f"\033[{style}m{text}\033[0m" if self.colour else text

    def scene(self, title, text):
        self.scenes += 1
        print("\n" + self.paint("1;33", f"{self.scenes}. {title}"))
        if text:
            print(textwrap.fill(text, 100))
        print(flush=True)

    def note(self, text):
        print(f"  {text}", flush=True)

    def check(self, what, got, want):
        if got == want:
            self.passed += 1
            figure = human(got) if isinstance(got, int) and not isinstance(got, bool) and got >= MIB else got
            print(self.paint("32", "  ok  ") + what + (f": {figure}" if not isinstance(got, bool) else ""), flush=True)
            return
        self.failed += 1
        print(self.paint("1;31", "  OFF ") + f"{what}\n      expected {want}\n      got      {got}", flush=True)
        if isinstance(got, int) and isinstance(want, int) and not isinstance(got, bool):
            print(f"      differs  {got - want:+d}", flush=True)
        if not self.keep_going:
            raise Off(f"{what}: expected {want}, got {got}")

    def closing(self, seconds):
        verdict = f"{self.passed} figures checked, {self.failed} off, {seconds:.1f} s, on a simulated {self.card}"
        print("\n" + self.paint("1;31" if self.failed else "1;32", verdict), flush=True)
