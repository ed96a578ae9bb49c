"""Every bad input: the exit status, the code, and the words that a person needs. Nothing is left behind."""
import json
import os
import socket
import sys
import unittest

from machine import GIB, Machine, wait_for

PREFIX = ""


class BadInput(unittest.TestCase):
    def setUp(self):
        self.vram = Machine(PREFIX)
        self.addCleanup(self.vram.close)

    def refused(self, words, status, code, *says):
        done = self.vram(*words)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertTrue(done.stderr.startswith(f"vram: {code}: "), done.stderr)
        self.assertIn(f"vram explain {code}", done.stderr)
        self.assertEqual(done.stdout, "")
        for text in says:
            self.assertIn(text, done.stderr)
        as_json = self.vram(*words[:1], "-o", "json", *words[1:])
        self.assertEqual(as_json.returncode, status)
        error = json.loads(as_json.stderr)["error"]
        self.assertEqual((error["code"], error["exit_status"]), (code, status))
        return done.stderr

    def test_amounts(self):
        for amount, says in (("0", "zero"), ("-1", "negative"), ("4X", "suffix"), ("1e30", "8Ei"), ("", "empty"), ("6 Gi", "suffix")):
            with self.subTest(amount):
                self.refused(["run", "--memory", amount, "--", "true"], 64, "VRAM-1001", says, "6Gi")
        self.assertEqual(self.vram.budgets(), [])

    def test_counts_and_what_excludes_each_other(self):
        rows = ((["--memory", "6Gi", "--gpu", "0"], 64, "VRAM-1003", "--gpu 0"),
                (["--memory", "6Gi", "--gpu", "many"], 64, "VRAM-1003", "1 to 16"),
                (["--card", "1", "--memory", "6Gi"], 64, "VRAM-1014", "--card"),
                (["--gpu", "2"], 64, "VRAM-1002", "--memory"),
                ([], 64, "VRAM-1002", "--memory 6Gi"),
                (["--memory", "6Gi", "--gpu", "2"], 64, "VRAM-1012", "one GPU"),
                (["--card", "3"], 64, "VRAM-1012", "one GPU"),
                (["--memory", "6Gi", "--wait", "soon"], 64, "VRAM-1004", "10m"),
                (["--memory", "6Gi", "--wait", "-1"], 64, "VRAM-1004", "more than zero"))
        for options, status, code, says in rows:
            with self.subTest(options):
                self.refused(["run", *options, "--", "true"], status, code, says)
        self.assertEqual(self.vram.budgets(), [])

    def test_the_command(self):
        script = self.vram.folder + "/script"
        with open(script, "w", encoding="utf-8") as file:
            file.write("#!/no/such/interpreter\n")
        plain = self.vram.folder + "/plain"
        open(plain, "w", encoding="utf-8").close()
        os.chmod(script, 0o755)
        run = ["run", "--memory", "6Gi"]
        self.refused(run, 64, "VRAM-5001", "after --")
        self.refused([*run, "--"], 64, "VRAM-5001", "after --")
        self.refused([*run, "--", "no-such-command"], 127, "VRAM-5002", "no-such-command", "PATH")
        self.refused([*run, "--", "/no/such/file"], 127, "VRAM-5002", "/no/such/file does not exist")
        self.refused([*run, "--", plain], 126, "VRAM-5003", "permission")
        self.refused([*run, "--", self.vram.folder], 126, "VRAM-5003", "folder")
        self.refused([*run, "--", script], 126, "VRAM-5003", "interpreter")
        wait_for("the budget of the script to go", lambda: self.vram.budgets() == [])

    def test_sizes_against_the_machine(self):
        gpu = self.vram.json("gpus")["gpus"][0]
        total = gpu["total"]
        self.refused(["run", "--memory", "1Ti", "--", "true"], 64, "VRAM-1013", "largest GPU", "Waiting cannot help")
        self.refused(["run", "--memory", str(total), "--", "true"], 64, "VRAM-1013", "reserve")
        self.refused(["run", "--memory", "1Mi", "--", "true"], 64, "VRAM-1011", "context", "at least")
        holder = self.vram.start("run", "--memory", str(gpu["free"] - 2 * GIB), "--", "sleep", "600")
        wait_for("the holder", lambda: len(self.vram.budgets()) == 1)
        said = self.refused(["run", "--memory", "4Gi", "--", "true"], 75, "VRAM-2001", "2Gi", "budget 1", "sleep 600", "--wait")
        self.assertNotIn("\x1b", said)
        self.refused(["run", "--card", "1", "--", "true"], 75, "VRAM-2001", "budget 1")
        done = self.vram("run", "--memory", "4Gi", "--wait", "0.3s", "--", "true", check=75)
        self.assertIn("VRAM-2003", done.stderr)
        self.assertIn("sleep 600", done.stderr)
        self.assertIn("vram: waiting, place 1: ", done.stderr)
        self.vram("run", "--memory", "2Gi", "--", "true", check=0)
        holder.kill()

    def test_words(self):
        self.refused(["rnu"], 64, "VRAM-1002", "Did you mean 'run'?")
        self.refused(["run", "--memroy", "6Gi", "--", "true"], 64, "VRAM-1002", "Did you mean --memory?")
        self.refused(["run", "--memory", "6Gi", "ls", "--all"], 64, "VRAM-1002", "write -- before the command")
        self.refused(["ps", "extra"], 64, "VRAM-1002", "takes no argument")
        self.refused(["kill", "seven"], 64, "VRAM-1007", "seven")
        self.vram("ps", check=0)
        self.refused(["kill", "4711"], 64, "VRAM-4015", "4711")
        self.refused(["kill", "1", "--signal", "NOPE"], 64, "VRAM-1002", "NOPE")
        self.refused(["oom", "4711"], 64, "VRAM-4016")
        self.refused(["oom", "yesterday"], 64, "VRAM-1007", "yesterday")
        self.refused(["explain", "4711"], 64, "VRAM-1006", "4711")
        self.refused(["top", "--interval", "0"], 64, "VRAM-1002", "0.1")
        self.refused(["completion", "tcsh"], 64, "VRAM-1002", "bash, zsh or fish")
        done = self.vram("ps", "-o", "xml", check=64)
        self.assertIn("json, yaml or wide", done.stderr)
        self.assertIn("Usage: vram", self.vram(check=64).stderr)


class Simulation(unittest.TestCase):
    def test_other_gpus_than_the_running_ones(self):
        vram = Machine(PREFIX)
        self.addCleanup(vram.close)
        vram("gpus", check=0)
        done = vram("ps", "--sim", "2xA10", check=78)
        self.assertIn("VRAM-4012", done.stderr)
        self.assertIn("1xA10", done.stderr)
        vram("ps", "--sim", "A10", check=0)
        vram("ps", "--sim", check=0)

    def test_lists_that_are_none(self):
        vram = Machine(PREFIX, spec="")
        self.addCleanup(vram.close)
        for spec in ("nonsense", "A10,", "7"):
            done = vram("gpus", env={"KUBE_VRAM_SIM": spec}, check=64)
            self.assertIn("VRAM-3101", done.stderr)
        done = vram("gpus", "--sim", "1xZ999", check=64)
        self.assertIn("VRAM-3101", done.stderr)
        self.assertIn("'Z999' is none of the simulated GPUs. There are: T4, A10,", done.stderr)

    def test_without_sim_a_missing_driver_is_an_error_that_names_sim(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("this machine has a GPU")
        vram = Machine(PREFIX, spec="")
        self.addCleanup(vram.close)
        for words in (["gpus"], ["run", "--memory", "6Gi", "--", "true"]):
            done = vram(*words, check=69)
            self.assertIn("--sim", done.stderr)
            self.assertIn("VRAM-4002", done.stderr)


class Daemon(unittest.TestCase):
    """Daemons that do not start, from a prefix whose vram-node is a script."""

    def setUp(self):
        self.vram = Machine(PREFIX)
        self.addCleanup(self.vram.close)
        self.fake = self.vram.folder + "/prefix"
        os.makedirs(self.fake + "/bin")
        self.vram.env.update(KUBE_VRAM_PREFIX=self.fake, KUBE_VRAM_START_SECONDS="0.5")

    def script(self, text):
        path = self.fake + "/bin/vram-node"
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)

    def test_missing(self):
        done = self.vram("run", "--memory", "6Gi", "--", "true", check=69)
        self.assertIn("VRAM-4002", done.stderr)
        self.assertIn("/prefix/bin/vram-node is missing", done.stderr)

    def test_ends_at_once_and_its_words_are_passed_on(self):
        self.script("echo 'vram-node: the moon is full \x1b[2J' >&2; exit 70\n")
        done = self.vram("run", "--memory", "6Gi", "--", "true", check=69)
        self.assertIn("ended before it was ready. It said: the moon is full \\x1b[2J", done.stderr)

    def test_hangs(self):
        self.script("sleep 5 & echo $! > $KUBE_VRAM_RUN_DIR/sleeper; wait\n")
        done = self.vram("ps", check=69)
        self.assertIn("was not ready within 0.5 s. It said nothing.", done.stderr)
        with open(self.vram.folder + "/run/sleeper", encoding="utf-8") as file:
            os.kill(int(file.read()), 9)

    def test_is_no_program(self):
        path = self.fake + "/bin/vram-node"
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/no/such/shell\n")
        os.chmod(path, 0o755)
        self.assertIn("could not be started", self.vram("ps", check=69).stderr)

    def test_none_runs_where_none_is_started(self):
        for words in (["kill", "1"], ["daemon", "status"], ["daemon", "stop"]):
            self.assertIn("VRAM-4001", self.vram(*words, check=69).stderr)

    def test_a_run_folder_that_others_can_write(self):
        os.chmod(self.vram.folder + "/run", 0o777)
        self.script("exit 0\n")
        done = self.vram("ps", check=73)
        self.assertIn("VRAM-4020", done.stderr)

    def test_a_stale_socket_is_no_daemon(self):
        os.mkdir(self.vram.folder + "/run/sim", 0o700)
        stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stale.bind(self.vram.folder + "/run/sim/node.sock")
        stale.close()
        self.assertIn("VRAM-4001", self.vram("daemon", "status", check=69).stderr)
        self.vram.env["KUBE_VRAM_PREFIX"] = PREFIX
        self.vram.env["KUBE_VRAM_START_SECONDS"] = "20"
        self.vram("ps", check=0)

    @unittest.skipUnless(os.geteuid() == 0, "needs root to become another user")
    def test_no_permission_for_the_socket(self):
        os.mkdir(self.vram.folder + "/run/sim", 0o700)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(listener.close)
        listener.bind(self.vram.folder + "/run/sim/node.sock")
        listener.listen()
        os.chmod(self.vram.folder + "/run/sim/node.sock", 0o600)
        for folder in ("", "/run", "/run/sim"):
            os.chmod(self.vram.folder + folder, 0o755)
        done = self.vram("ps", check=77, user=65534, group=65534, extra_groups=[])
        self.assertIn("VRAM-4003", done.stderr)


if __name__ == "__main__":
    PREFIX = os.path.realpath(sys.argv.pop(1))
    unittest.main(verbosity=2)
