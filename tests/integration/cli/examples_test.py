"""The commands of each examples/*/README.md, run as they stand, print what the page says."""
import os
import re
import subprocess
import sys
import unittest

from machine import Machine, read

PREFIX = ""
ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../.."))


class Examples(unittest.TestCase):
    def setUp(self):
        self.vram = Machine(PREFIX, spec="")
        self.addCleanup(self.vram.close)
        self.addCleanup(self.vram, "daemon", "stop", "--force", "--sim")  # first: cleanups run backwards

    def commands(self, example):
        page = read(f"{ROOT}/examples/{example}/README.md")
        lines = re.search(r"```sh\nmake build\n(.*?)```", page, re.S)[1].splitlines()
        out = []
        for line in lines:
            done = subprocess.run(["bash", "-c", line.replace("build/dev", str(self.vram.prefix))], env=self.vram.env, capture_output=True,
                                  text=True, timeout=60, check=True)
            self.assertEqual(done.stderr, "", line)
            out.append(done.stdout)
        return page, out

    def test_serve(self):
        _, (served, oom) = self.commands("serve")
        self.assertEqual(served, "ready\ndone\nbusy\ndone\n")
        self.assertIn("serve asked for 4Gi", oom)

    def test_train(self):
        page, out = self.commands("train")
        self.assertEqual([text.splitlines()[-1] for text in out], re.findall("`(batch [0-9]+)`", page))
        self.assertTrue(out[0].startswith("the GPU has 4096 MiB, 3840 of them free\n"), out[0])

    def test_every_example_is_tested(self):
        folders = {entry.name for entry in os.scandir(f"{ROOT}/examples") if entry.is_dir()}
        self.assertEqual(folders, {name[len("test_"):] for name in dir(self) if name in ("test_serve", "test_train")})


if __name__ == "__main__":
    PREFIX = os.path.realpath(sys.argv.pop(1))
    unittest.main(verbosity=2)
