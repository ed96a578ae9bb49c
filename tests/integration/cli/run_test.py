"""`vram run`: the command is the process itself, its budget lasts as long as it, and waiting is orderly."""
import json
import os
import signal
import subprocess
import sys
import unittest

from machine import GIB, Machine, Terminal, read, wait_for

PREFIX = ""


class Base(unittest.TestCase):
    def setUp(self):
        self.vram = Machine(PREFIX)
        self.addCleanup(self.vram.close)

    def until_holding(self, program):
        for line in program.stdout:
            if line == "holding\n":
                return
        raise AssertionError(program.stderr.read())


class TheCommandItself(Base):
    def test_streams_arguments_folder_and_status(self):
        done = self.vram("run", "-m", "1Gi", "--", "sh", "-c", 'cat; pwd; echo "$1|$2" >&2; exit 41', "sh", "a b", "--", cwd="/usr")
        self.assertEqual(done.returncode, 41)
        self.assertEqual((done.stdout, done.stderr), ("/usr\n", "a b|--\n"))
        piped = subprocess.run([self.vram.vram, "run", "-m", "1Gi", "--", "wc", "-c"], env=self.vram.env, input=b"\x00\xff" * 50000,
                               capture_output=True, check=True)
        self.assertEqual(piped.stdout.strip(), b"100000")
        self.assertEqual(piped.stderr, b"")

    def test_pid_descriptors_signals_and_limits_are_what_they_were(self):
        script = "echo $$; ls /proc/self/fd | tr '\\n' ' '; grep -E '^(SigBlk|SigIgn)' /proc/self/status; umask"
        self.vram("ps", check=0)
        plain = subprocess.run(["sh", "-c", script], env=self.vram.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        program = self.vram.start("run", "-m", "1Gi", "--", "sh", "-c", script)
        out, _ = program.communicate()
        lines = out.splitlines()
        self.assertEqual(lines[0], str(program.pid))
        self.assertEqual(lines[1:], plain.stdout.splitlines()[1:])

    def test_a_very_long_command_line(self):
        words = ["x" * 1000] * 100
        done = self.vram("run", "-m", "1Gi", "--", "sh", "-c", "echo $#", "sh", *words, check=0)
        self.assertEqual(done.stdout, "100\n")

    def test_death_by_signal_is_passed_on(self):
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1):
            program = self.vram.start("run", "-m", "1Gi", "--", "sleep", "600")
            wait_for("the command", lambda p=program: read(f"/proc/{p.pid}/comm") == "sleep\n")
            program.send_signal(name)
            self.assertEqual(program.wait(30), -name)
        wait_for("the budgets to go", lambda: self.vram.budgets() == [])

    def test_a_handler_of_the_command_gets_its_signals(self):
        program = self.vram.start("run", "-m", "1Gi", "--", "sh", "-c", "trap 'echo term; exit 3' TERM; trap 'echo int' INT; echo ready; while :; do sleep 0.05; done")
        self.assertEqual(program.stdout.readline(), "ready\n")
        program.send_signal(signal.SIGINT)
        self.assertEqual(program.stdout.readline(), "int\n")
        program.send_signal(signal.SIGTERM)
        self.assertEqual(program.stdout.readline(), "term\n")
        self.assertEqual(program.wait(30), 3)

    def test_stop_and_continue_by_the_shell_at_a_terminal(self):
        self.vram("ps", check=0)
        shell = Terminal(["bash", "--norc", "-i"], {**self.vram.env, "PS1": "prompt> "})
        shell.read_until("prompt> ")
        shell.forget()
        shell.type(f"{self.vram.vram} run -m 1Gi -- sh -c 'echo be''gun; sleep 600'\n")
        shell.read_until("begun")
        self.assertEqual(len(self.vram.budgets()), 1)
        shell.type("\x1a")
        shell.read_until("Stopped")
        self.assertEqual(len(self.vram.budgets()), 1)
        shell.forget()
        shell.type("fg\n")
        shell.read_until("sleep 600")
        wait_for("the command to have the terminal", lambda: os.tcgetpgrp(shell.fd) != shell.pid)
        shell.forget()
        shell.type("\x03")
        shell.read_until("prompt> ")
        shell.type("echo sta''tus=$?\n")
        shell.read_until("status=130")
        shell.type("exit\n")
        shell.status()
        wait_for("the budget to go", lambda: self.vram.budgets() == [])

    def test_nothing_is_said_unless_asked(self):
        done = self.vram("run", "-m", "1Gi", "--", "true", check=0)
        self.assertEqual(done.stdout + done.stderr, "")
        said = self.vram("run", "-v", "-m", "1Gi", "--", "true", check=0).stderr
        self.assertRegex(said, r"^vram: budget \d+: 1Gi on simulated GPU 0 \(NVIDIA A10\); a context takes \S+ of it; mode (namespace|path).*; past the guard: .+\n$")


class Modes(Base):
    """Programs linked with the driver, opening it by name and by absolute path."""

    def limits(self, *options):
        done = self.vram("run", "-m", "2Gi", *options, "--", self.vram.alloc, "256Mi", "--info", check=0)
        linked = done.stdout
        by_name = self.vram("run", "-m", "2Gi", *options, "--", self.vram.alloc_dl, "256Mi", "--info", check=0).stdout
        self.assertEqual(linked, by_name)
        path = str(self.vram.prefix / "lib/kube-vram/sim/libcuda.so.1")
        by_path = self.vram("run", "-m", "2Gi", *options, "--", self.vram.alloc_dl, "256Mi", "--info", "--library", path, check=0).stdout
        return linked, by_path

    def test_path(self):
        linked, by_path = self.limits("--no-namespace")
        self.assertIn(f" of {2 * GIB}\n", linked)
        self.assertNotIn(f" of {2 * GIB}\n", by_path)  # as the documentation says: absolute paths slip past

    def test_path_by_environment(self):
        done = self.vram("run", "-v", "-m", "2Gi", "--", "true", env={"KUBE_VRAM_MODE": "path"}, check=0)
        self.assertIn("mode path", done.stderr)
        done = self.vram("run", "-m", "2Gi", "--", "true", env={"KUBE_VRAM_MODE": "magic"}, check=64)
        self.assertIn("neither path nor namespace", done.stderr)

    def test_namespace(self):
        if "mode namespace" not in self.vram("run", "-v", "-m", "2Gi", "--", "true", check=0).stderr:
            self.skipTest("this system refuses mount namespaces")
        linked, by_path = self.limits()
        self.assertIn(f" of {2 * GIB}\n", linked)
        self.assertEqual(linked, by_path)

    def test_a_run_within_a_run_has_the_inner_budget(self):
        done = self.vram("run", "-m", "4Gi", "--", self.vram.vram, "run", "-m", "2Gi", "--", self.vram.alloc, "256Mi", "--info", check=0)
        self.assertIn(f" of {2 * GIB}\n", done.stdout)

    @unittest.skipUnless(os.geteuid() == 0, "needs root to become another user")
    def test_an_ordinary_user(self):
        user = Machine(PREFIX)
        self.addCleanup(user.close)
        for root, folders, _ in os.walk(user.folder):
            for folder in (root, *(os.path.join(root, f) for f in folders)):
                os.chown(folder, 65534, 65534)
        me = {"user": 65534, "group": 65534, "extra_groups": []}
        done = user("run", "-v", "-m", "2Gi", "--", "sh", "-c", f"id -u; id -g; exec {user.alloc} --info --until-refused", check=0, **me)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[:2], ["65534", "65534"])
        self.assertIn(f" of {2 * GIB}", lines[3])
        self.assertIn(f"free 0 of {2 * GIB}", lines[-1])
        user("daemon", "stop", check=0, **me)


class Budgets(Base):
    def test_granted_bytes_are_the_limit_less_the_context(self):
        before = self.vram.free()
        done = self.vram("run", "-v", "-m", "3Gi", "--", self.vram.alloc, "--until-refused", "--exact", check=0)
        self.assertTrue(json.loads(self.vram("ps", "-o", "json", check=0).stdout)["simulated"])
        reserve = self.context_reserve()
        self.assertIn(f"total {3 * GIB - reserve}\n", done.stdout)
        wait_for("the bytes to come back", lambda: self.vram.free() == before)

    def context_reserve(self):
        """From the simulated driver's own figures: what one process with a context and nothing else is charged."""
        program = self.vram.start("run", "-m", "1Gi", "--", self.vram.alloc, "512", "--hold")
        self.until_holding(program)
        charged = self.vram.budgets()[0]["gpus"][0]["charged"]
        program.kill()
        program.wait(30)
        return charged - 512

    def test_kill_ends_all_processes_and_gives_everything_back(self):
        before = self.vram.free()
        program = self.vram.start("run", "-m", "2Gi", "--", "sh", "-c", f"{self.vram.alloc} 256Mi --hold & {self.vram.alloc} 256Mi --hold; wait")
        self.until_holding(program)
        self.until_holding(program)
        budget = self.vram.budgets()[0]["budget"]
        self.assertEqual(len(self.vram.budgets()[0]["processes"]), 2)
        done = self.vram("kill", str(budget), check=0)
        self.assertRegex(done.stdout, rf"^budget {budget}: sent signal 15 to pid \d+, \d+")
        program.wait(30)
        wait_for("the bytes to come back", lambda: self.vram.free() == before)

    def test_a_child_that_outlives_its_parent_keeps_the_budget(self):
        done = self.vram("run", "-m", "2Gi", "--", "sh", "-c",
                         f"setsid {self.vram.alloc} 512Mi --hold >{self.vram.folder}/out 2>&1 </dev/null & echo $!", check=0)
        wait_for("the child", lambda: "holding" in read(self.vram.folder + "/out"))
        budgets = self.vram.budgets()
        self.assertEqual(len(budgets), 1)
        self.assertEqual([p["name"] for p in budgets[0]["processes"]], ["alloc"])
        self.assertGreaterEqual(budgets[0]["gpus"][0]["charged"], 512 << 20)
        os.kill(int(done.stdout), signal.SIGKILL)
        wait_for("the budget to go", lambda: self.vram.budgets() == [])

    def test_refusals_are_explained(self):
        self.vram("run", "-m", "1Gi", "--", self.vram.alloc, "2Gi", check=1)
        listed = self.vram("oom", check=0).stdout
        self.assertTrue(listed.startswith("simulated GPUs\n"), listed)
        self.assertIn("alloc", listed)
        oom = self.vram.json("oom", "last")["oom"]
        self.assertEqual((oom["asked"], oom["limit"], oom["call"]), (2 * GIB, GIB, "cuMemAlloc_v2"))
        text = self.vram("oom", "last", check=0).stdout
        for words in ("asked       2Gi (2147483648 bytes) by cuMemAlloc_v2 on GPU 0", "would fit", "driver reserve", "free"):
            self.assertIn(words, text)

    def test_a_refusal_that_a_retry_overcame_is_counted(self):
        holder = self.vram.start("run", "-m", "2Gi", "--", "sh", "-c",
                                 f"{self.vram.alloc} 1Gi --hold 1 & sleep 0.3; {self.vram.alloc} 640Mi --retry 20 & wait")
        out, _ = holder.communicate(timeout=60)
        self.assertIn("granted 671088640", out)
        counted = self.vram.json("oom")["counted"]["overcome"]
        self.assertGreaterEqual(counted, 1)
        self.assertIn("overcome by a retry", self.vram("oom", check=0).stdout)


class DaemonGone(Base):
    def test_in_mid_run(self):
        program = self.vram.start("run", "-m", "2Gi", "--", self.vram.alloc, "512Mi", "--hold")
        self.until_holding(program)
        daemon = self.vram.json("daemon", "status")["pid"]
        os.kill(daemon, signal.SIGKILL)
        self.assertIn("VRAM-4001", wait_for("the daemon to be gone", lambda: self.vram("daemon", "status").stderr))
        self.assertIsNone(program.poll())
        budgets = wait_for("the next daemon", self.vram.budgets)  # `vram ps` starts it
        self.assertGreaterEqual(budgets[0]["gpus"][0]["charged"], 512 << 20)
        self.assertIsNone(program.poll())
        program.kill()
        program.wait(30)
        wait_for("the budget to go", lambda: self.vram.budgets() == [])

    def test_while_waiting(self):
        self.vram.start("run", "--card", "1", "--", "sleep", "600")
        wait_for("the holder", lambda: len(self.vram.budgets()) == 1)
        waiter = self.vram.start("run", "-m", "1Gi", "--wait", "10m", "--", "true")
        self.assertIn("waiting", waiter.stderr.readline())
        os.kill(self.vram.json("daemon", "status")["pid"], signal.SIGKILL)
        self.assertEqual(waiter.wait(30), 69)
        self.assertIn("VRAM-4004", waiter.stderr.read())

    def test_stop_is_refused_with_budgets_unless_forced(self):
        self.vram.start("run", "-m", "1Gi", "--", "sleep", "600")
        wait_for("the holder", lambda: len(self.vram.budgets()) == 1)
        self.assertIn("VRAM-4018", self.vram("daemon", "stop", check=75).stderr)
        self.vram("daemon", "stop", "--force", check=0)
        wait_for("the next daemon to know the budget", lambda: len(self.vram.budgets()) == 1)

    def test_two_runs_at_once_start_one_daemon(self):
        programs = [self.vram.start("run", "-m", "1Gi", "--", "sleep", "600") for _ in range(6)]
        wait_for("six budgets", lambda: len(self.vram.budgets()) == 6)
        self.assertEqual([p.poll() for p in programs], [None] * 6)


class Waiting(Base):
    def setUp(self):
        super().setUp()
        self.holder = self.vram.start("run", "--card", "1", "--", "sleep", "600")
        wait_for("the holder", lambda: len(self.vram.budgets()) == 1)

    def waiters(self, count):
        return wait_for(f"{count} waiting", lambda: (w := self.vram.json("ps")["waiting"]) and len(w) == count and w)

    def test_in_order_of_arrival(self):
        order = self.vram.folder + "/order"
        programs = []
        for name in ("first", "second", "third"):
            programs.append(self.vram.start("run", "--card", "1", "--wait", "10m", "--", "sh", "-c", f"echo {name} >>{order}"))
            self.waiters(len(programs))
        self.assertEqual([w["position"] for w in self.vram.json("ps")["waiting"]], [1, 2, 3])
        self.holder.kill()
        for program in programs:
            self.assertEqual(program.wait(30), 0)
        self.assertEqual(read(order).split(), ["first", "second", "third"])
        said = programs[2].stderr.read().splitlines()
        self.assertTrue(said[0].startswith("vram: waiting, place 3: "), said)
        self.assertTrue(all(line.startswith("vram: waiting, place ") for line in said), said)
        self.assertEqual(len(said), len(set(said)))  # a line for each change, no more

    def test_interrupt_gives_up_the_place(self):
        for name, status, word in ((signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGHUP, 129, "SIGHUP")):
            waiter = self.vram.start("run", "-m", "1Gi", "--wait", "10m", "--", "true")
            self.waiters(1)
            waiter.send_signal(name)
            self.assertEqual(waiter.wait(30), status)
            said = waiter.stderr.read()
            self.assertIn(f"VRAM-5004: Gave up waiting for 1Gi because of {word}" if word != "Ctrl-C" else "SIGINT (Ctrl-C)", said)
            wait_for("an empty queue", lambda: not self.vram.json("ps")["waiting"])

    def test_killed_while_waiting_leaves_the_queue(self):
        waiter = self.vram.start("run", "-m", "1Gi", "--wait", "10m", "--", "true")
        self.waiters(1)
        waiter.kill()
        waiter.wait(30)
        wait_for("an empty queue", lambda: not self.vram.json("ps")["waiting"])

    def test_stopped_and_continued_keeps_its_place(self):
        waiter = self.vram.start("run", "-m", "1Gi", "--wait", "10m", "--", "echo", "started")
        self.waiters(1)
        waiter.send_signal(signal.SIGTSTP)
        wait_for("the stop", lambda: read(f"/proc/{waiter.pid}/stat").split()[2] == "T")
        waiter.send_signal(signal.SIGCONT)
        self.holder.kill()
        self.assertEqual(waiter.wait(30), 0)
        self.assertEqual(waiter.stdout.read(), "started\n")

    def test_at_a_terminal_one_line_is_written_over(self):
        waiter = Terminal([self.vram.vram, "run", "-m", "1Gi", "--wait", "10m", "--", "echo", "started"], self.vram.env, columns=60)
        waiter.read_until("waiting 1s, place 1: ")
        self.assertNotIn("\n", waiter.seen)
        self.holder.kill()
        self.assertEqual(waiter.status(), 0)
        self.assertIn("\r\x1b[K", waiter.seen)
        self.assertTrue(waiter.seen.endswith("started\r\n"), waiter.seen)

    def test_signals_that_were_ignored_stay_ignored(self):
        waiter = self.vram.start("run", "-m", "1Gi", "--wait", "10m", "--", "echo", "started",
                                 preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        self.waiters(1)
        waiter.send_signal(signal.SIGINT)
        self.holder.kill()
        self.assertEqual(waiter.wait(30), 0)


if __name__ == "__main__":
    PREFIX = os.path.realpath(sys.argv.pop(1))
    unittest.main(verbosity=2)
