"""What is shown: tables, JSON, YAML, the live screen, completions, man pages."""
import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

from machine import GIB, Machine, Terminal, read, wait_for

PREFIX = ""


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.vram = Machine(PREFIX, spec="2xA10")
        cls.addClassCleanup(cls.vram.close)
        cls.holder = cls.vram.start("run", "-m", "6Gi", "--", cls.vram.alloc, "1Gi", "--hold")
        for line in cls.holder.stdout:
            if line == "holding\n":
                break
        cls.foreign = subprocess.Popen([cls.vram.alloc, "2Gi", "--hold"], stdout=subprocess.PIPE, text=True,
                                       env={**cls.vram.env, "LD_LIBRARY_PATH": str(cls.vram.prefix / "lib/kube-vram/sim")})
        cls.addClassCleanup(cls.foreign.communicate)
        cls.addClassCleanup(cls.foreign.kill)
        wait_for("the foreign program", lambda: sum(g["foreign"] for g in cls.vram.json("gpus")["gpus"]) >= 2 * GIB)


class Lists(Base):
    def test_everything_says_that_it_is_simulated(self):
        for words in (["ps"], ["gpus"], ["oom"], ["daemon", "status"]):
            self.assertTrue(self.vram(*words, check=0).stdout.startswith("simulated GPUs"), words)
            self.assertIs(self.vram.json(*words)["simulated"], True, words)
        self.assertIn("simulated GPUs", self.vram("top", "--once", check=0).stdout.splitlines()[0])
        self.assertIs(self.vram.json("top", "--once")["simulated"], True)

    def test_ps(self):
        text = self.vram("ps", check=0).stdout
        self.assertRegex(text, r"\n +1 +- +\w+ +\d +6Gi +1\.\dGi +1\.\dGi +1\.\dGi +0 +cooperative +\S+/alloc 1Gi --hold\n")
        self.assertRegex(text, rf"\n +{self.holder.pid} +\d +1\.\dGi +1\.\dGi +alloc\n")
        budget = self.vram.json("ps")["budgets"][0]
        self.assertEqual(budget["gpus"][0]["limit"], 6 * GIB)
        self.assertEqual(budget["gpus"][0]["charged"], budget["gpus"][0]["resident"])
        self.assertRegex(self.vram("ps", "-o", "wide", check=0).stdout, r"MODE +STRICT +OVERCOME +HIDDEN +AGE +COMMAND")

    def test_gpus(self):
        gpus = self.vram.json("gpus")["gpus"]
        self.assertEqual(len(gpus), 2)
        for g in gpus:
            self.assertEqual(g["free"], g["total"] - g["reserved"] - g["foreign"] - g["assigned"])
        held = [p for g in gpus for p in g["foreign_processes"]]
        self.assertEqual([p["pid"] for p in held], [self.foreign.pid])
        text = self.vram("gpus", check=0).stdout
        self.assertRegex(text, rf"pid {self.foreign.pid} alloc 2\.\dGi")
        self.assertEqual(text.count("NVIDIA A10"), 2)
        self.assertIn(gpus[0]["uuid"], self.vram("gpus", "-o", "wide", check=0).stdout)

    def test_json_is_the_same_as_yaml(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("python3-yaml is not installed")
        for words in (["ps"], ["gpus"], ["oom"], ["explain", "VRAM-2001"]):
            as_yaml = yaml.safe_load(self.vram(*words, "-o", "yaml", check=0).stdout)
            self.assertEqual(self.shape(as_yaml), self.shape(self.vram.json(*words)))

    def shape(self, value):
        """Without the figures that may have changed in between."""
        if isinstance(value, dict):
            return {k: self.shape(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.shape(v) for v in value]
        return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else value

    def test_names_of_other_programs_cannot_move_the_cursor(self):
        evil = self.vram.folder + "/\x1b[2Jevil\n\u202e"
        shutil.copy(self.vram.alloc, evil)
        program = self.vram.start("run", "-m", "1Gi", "--", evil, "16Mi", "--hold")
        wait_for("the program", lambda: len(self.vram.budgets()) == 2 and self.vram.budgets()[1]["processes"])
        for words in (["ps"], ["ps", "-o", "wide"], ["top", "--once"]):
            text = self.vram(*words, check=0).stdout
            self.assertIn("evil" if words[0] == "ps" else "[2J", text)
            self.assertEqual(re.findall("[\x00-\x09\x0b-\x1f\x7f\u202e]", text), [])
        for form in ("json", "yaml"):
            self.assertEqual(re.findall("[\x00-\x09\x0b-\x1f\x7f]", self.vram("ps", "-o", form, check=0).stdout), [])
        program.kill()
        program.wait(30)
        wait_for("its budget to go", lambda: len(self.vram.budgets()) == 1)

    def test_empty_states_help(self):
        empty = Machine(PREFIX)
        self.addCleanup(empty.close)
        self.assertIn("No budgets. Start one: vram run", empty("ps", check=0).stdout)
        self.assertIn("No refusals.", empty("oom", check=0).stdout)
        self.assertIn("VRAM-4016", empty("oom", "last", check=64).stderr)


class Top(Base):
    def test_once_and_piped(self):
        text = self.vram("top", "--once", check=0).stdout
        self.assertNotIn("\x1b", text)
        self.assertEqual(len(re.findall(r"^\[[#%A-Za-z.]{78}\]$", text, re.M)), 2, text)
        self.assertRegex(text, r"A 1\.\dGi/6Gi")
        program = self.vram.start("top", "-n", "0.1")
        seen = ""
        while seen.count("kube-vram  simulated GPUs") < 3:
            seen += program.stdout.readline()
        self.assertNotIn("\x1b", seen)
        program.kill()
        program.wait()
        program = self.vram.start("top", "-n", "0.1", "-o", "json")
        for _ in range(3):
            self.assertEqual(len(json.loads(program.stdout.readline())["gpus"]), 2)
        program.kill()
        program.wait()

    def test_a_reader_that_leaves_ends_it_quietly(self):
        done = subprocess.run(["bash", "-c", f"{self.vram.vram} top -n 0.1 | head -1; exit ${{PIPESTATUS[0]}}"], env=self.vram.env,
                              capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.returncode, 141)  # SIGPIPE, as for every program in a pipe

    def test_live(self):
        screen = Terminal([self.vram.vram, "top", "-n", "0.1"], self.vram.env)
        screen.read_until("q quits")
        screen.read_until("\x1b[38;5;16;48;5;39mA")  # colours
        self.assertIn("\x1b[?1049h\x1b[?25l", screen.seen)
        screen.forget()
        screen.resize(24, 40)
        time.sleep(0.3)
        screen.forget()
        frame = wait_for("a whole frame", lambda: re.search(r"\x1b\[H(.*?)\x1b\[J", screen.read_until("\x1b[J", more=True), re.S))[1]
        for line in re.sub(r"\x1b\[[0-9;]*[mK]", "", frame).splitlines():
            self.assertLessEqual(len(line), 40, line)
        screen.type("q")
        self.assertEqual(screen.status(), 0)
        self.assertTrue(screen.seen.endswith("\x1b[?25h\x1b[?1049l"), repr(screen.seen[-80:]))

    def test_without_colours(self):
        for words, env in ((["--no-color"], {}), ([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"})):
            screen = Terminal([self.vram.vram, "top", *words], {**self.vram.env, **env})
            screen.read_until("AA")
            self.assertEqual(re.findall(r"\x1b\[[0-9;]*m", screen.seen), [])
            screen.type("q")
            self.assertEqual(screen.status(), 0)

    def test_interrupt_restores_the_terminal(self):
        screen = Terminal([self.vram.vram, "top"], self.vram.env)
        screen.read_until("q quits")
        screen.type("\x03")
        self.assertEqual(screen.status(), 0)
        self.assertTrue(screen.seen.endswith("\x1b[?25h\x1b[?1049l"))


class Shells(Base):
    def complete(self, line):
        """What bash offers at the end of the line."""
        script = f"""source <({self.vram.vram} completion bash)
COMP_LINE={json.dumps(line)}; COMP_POINT=${{#COMP_LINE}}
read -ra COMP_WORDS <<<"$COMP_LINE"; [[ $COMP_LINE == *" " ]] && COMP_WORDS+=("")
COMP_WORDS[0]={self.vram.vram}; COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_vram; printf '%s\\n' "${{COMPREPLY[@]}}" """
        done = subprocess.run(["bash", "--norc", "-c", script], env=self.vram.env, capture_output=True, text=True, timeout=30, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash_completes(self):
        self.assertEqual(self.complete("vram "), ["run", "ps", "top", "gpus", "oom", "kill", "daemon", "explain", "completion"])
        self.assertEqual(self.complete("vram g"), ["gpus"])
        self.assertEqual(self.complete("vram run --me"), ["--memory"])
        self.assertEqual(self.complete("vram ps -o "), ["json", "yaml", "wide"])
        self.assertEqual(self.complete("vram ps --output w"), ["wide"])
        self.assertEqual(self.complete("vram daemon s"), ["status", "stop"])
        self.assertEqual(self.complete("vram daemon stop --f"), ["--force"])
        self.assertEqual(self.complete("vram kill "), ["1"])  # the budget that runs
        self.assertEqual(self.complete("vram oom l"), ["last"])
        self.assertEqual(self.complete("vram explain VRAM-100"), [f"VRAM-100{n}" for n in (1, 2, 3, 4, 6, 7)])
        self.assertIn("sleep", self.complete("vram run -m 6Gi -- slee"))
        self.assertEqual(self.complete("vram kill 1 --signal K"), ["KILL"])

    def test_scripts_are_accepted(self):
        for shell in ("bash", "zsh", "fish"):
            if shutil.which(shell) is None:
                self.skipTest(f"{shell} is not installed")
            script = self.vram("completion", shell, check=0).stdout
            path = f"{self.vram.folder}/completion.{shell}"
            with open(path, "w", encoding="utf-8") as file:
                file.write(script)
            done = subprocess.run([shell, "-n", path], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""), shell)
            installed = {"bash": "bash-completion/completions/vram", "zsh": "zsh/site-functions/_vram",
                         "fish": "fish/vendor_completions.d/vram.fish"}[shell]
            self.assertEqual(read(str(self.vram.prefix / "share" / installed)), script)

    def test_fish_completes(self):
        if shutil.which("fish") is None:
            self.skipTest("fish is not installed")
        script = f"set PATH {self.vram.prefix}/bin $PATH; vram completion fish | source; complete -C 'vram kill '; complete -C 'vram ps -o '"
        done = subprocess.run(["fish", "--no-config", "-c", script], env={**self.vram.env, "HOME": self.vram.folder}, capture_output=True,
                              text=True, timeout=60, check=True)
        offered = [line.split("\t")[0] for line in done.stdout.splitlines()]
        self.assertIn("1", offered)
        self.assertTrue({"json", "yaml", "wide"} <= set(offered), offered)

    def test_zsh_loads_it(self):
        if shutil.which("zsh") is None:
            self.skipTest("zsh is not installed")
        script = f"autoload -U compinit; compinit -u -D; source <({self.vram.vram} completion zsh); print $_comps[vram]"
        done = subprocess.run(["zsh", "-f", "-c", script], env={**self.vram.env, "HOME": self.vram.folder}, capture_output=True, text=True,
                              timeout=60, check=True)
        self.assertEqual((done.stdout, done.stderr), ("_vram\n", ""))


class Pages(unittest.TestCase):
    def setUp(self):
        self.vram = Machine(PREFIX)
        self.addCleanup(self.vram.close)

    def test_man_pages_render_without_warnings(self):
        if shutil.which("man") is None or shutil.which("groff") is None:
            self.skipTest("man is not installed")
        folder = self.vram.prefix / "share/man/man1"
        pages = sorted(os.listdir(folder))
        self.assertIn("vram-run.1", pages)
        for page in pages:
            done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(folder / page)],
                                  env={**self.vram.env, "MANROFFSEQ": "", "MANWIDTH": "80"}, capture_output=True, timeout=60, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, b""), page)

    def test_help_and_explanations(self):
        for words in (["--help"], ["run", "--help"], ["daemon", "-h"], ["daemon", "stop", "--help"]):
            text = self.vram(*words, check=0).stdout
            self.assertIn("Usage: vram", text)
            self.assertLessEqual(max(map(len, text.splitlines())), 90)
        text = self.vram("explain", "VRAM-2001", check=0).stdout
        self.assertIn("(exit status 75)", text)
        self.assertEqual(self.vram("explain", "2001", check=0).stdout, text)
        self.assertRegex(self.vram("--version", check=0).stdout, r"^vram \d+\.\d+\.\d+")


if __name__ == "__main__":
    PREFIX = os.path.realpath(sys.argv.pop(1))
    unittest.main(verbosity=2)
