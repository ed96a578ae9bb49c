#!/usr/bin/env python3
"""Shows that each rule of tidy.py and headers.py fires on a bad sample and stays silent on a good one. selftest.py --clang CLANG"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import cxx
import layout
import tidy

HERE = Path(__file__).resolve().parent
CLANG = "clang++-19"


def sentences(files):
    """What tidy.py says about a tree of these files: {path: text}."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            (Path(root) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(root) / path).write_text(text, encoding="utf-8")
        return [f"{b.path}:{b.line}: {b.sentence}" for b in tidy.check_tree(root)[0]]


def source(text, path="src/node/x.cc"):
    """A tree of one source file that a CMakeLists.txt names."""
    return {path: text, f"{Path(path).parent}/CMakeLists.txt": f"kv_library(x SOURCES {Path(path).name})\n"}


class Rules(unittest.TestCase):
    def fires(self, files, *words):
        said = sentences(files)
        self.assertEqual(len(said), 1, f"one breach was planted, found: {said}")
        for word in words:
            self.assertIn(word, said[0])

    def silent(self, files):
        self.assertEqual(sentences(files), [])

    def test_good_tree(self):
        self.silent(source('#include "base/bytes.h"\n#include "gpu/device.h"\n#include <thread>\nint f() { return 1; }\n'))

    def test_every_arrow_of_the_layout(self):
        for folder, allowed in layout.MAY_INCLUDE.items():
            for target in layout.MAY_INCLUDE:
                files = source(f'#include "{target}/x.h"\n', f"src/{folder}/x.cc")
                if target in allowed or target == folder:
                    self.silent(files)
                else:
                    self.fires(files, f"src/{folder}/x.cc:1:", f"{folder}/ may not include {target}/")

    def test_arrows_have_no_circle(self):
        order = []
        while len(order) < len(layout.MAY_INCLUDE):
            ready = [f for f, needs in layout.MAY_INCLUDE.items() if f not in order and needs <= set(order)]
            self.assertTrue(ready, f"a circle among the folders other than {order}")
            order += ready

    def test_module_image_is_shared_with_the_simulated_driver(self):
        self.silent(source('#include "lease/module_image.h"\n', "src/simgpu/x.cc"))
        self.fires(source('#include "lease/table.h"\n', "src/simgpu/x.cc"), "simgpu/ may not include lease/")

    def test_unknown_folder(self):
        self.fires(source("int x;\n", "src/stuff/x.cc"), "not in MAY_INCLUDE")

    def test_programs_do_not_link_the_guard(self):
        self.fires(source('#include "guard/wrap.h"\n', "apps/vram/main.cc"), "may not include guard/")
        self.silent(source('#include "node/client.h"\n', "apps/vram/main.cc"))

    def test_pure_folders(self):
        for header in ("thread", "chrono", "fstream", "unistd.h", "sys/stat.h", "random", "iostream", "mutex"):
            for folder in layout.PURE_FOLDERS:
                self.fires(source(f"#include <{header}>\n", f"src/{folder}/x.cc"), "is pure", header)
        self.silent(source("#include <vector>\n#include <expected>\n", "src/placement/x.cc"))

    def test_freestanding_folders(self):
        for folder in ("lease", "guard"):
            self.fires(source("#include <vector>\n", f"src/{folder}/x.cc"), "no <vector> of the C++ library")
            self.silent(source("#include <stdint.h>\n#include <pthread.h>\n", f"src/{folder}/x.cc"))

    def test_confined_libraries(self):
        self.fires(source("#include <boost/beast/http.hpp>\n"), "stays in http/")
        self.fires(source("#include <openssl/ssl.h>\n", "src/kube/x.cc"), "stays in http/")
        self.fires(source("#include <grpcpp/grpcpp.h>\n", "src/kube/x.cc"), "stays in node/")
        self.fires(source("#include <cuda.h>\n"), "stays in guard, simgpu/")

    def test_sizes(self):
        self.silent(source("int x;\n" * 600))
        self.fires(source("int x;\n" * 601), "601 lines")
        self.silent({"src/node/x.h": "#pragma once\n" + "int f();\n" * 249})
        self.fires({"src/node/x.h": "#pragma once\n" + "int f();\n" * 250}, "251 lines")

    def test_functions(self):
        body = "  f();\n" * 68
        self.silent(source("void g() {\n" + body + "}\n"))
        self.fires(source("void g() {\n  f();\n" + body + "}\n"), "x.cc:1:", "g has 71 lines")

    def test_pragma_once(self):
        self.fires({"src/node/x.h": "int f();\n"}, "#pragma once")

    def test_line_ends(self):
        self.fires(source("int x; \n"), "space at the end")
        self.fires(source("int x;"), "no end")

    def test_things_left_to_do(self):
        self.fires(source("// TO" + "DO: later\n"), "names its owner")
        self.silent(source("// TO" + "DO(ann): later\n"))

    def test_words_and_hosts(self):
        for word in ("blaz" + "ing fast", "/wo" + "rk/x", "see issue " + "#12"):
            self.fires({"a.txt": f"it is {word}\n"}, "does not belong")
        self.fires({"a.txt": "https:" + "//registry.example.net/x\n"}, "a link to registry")

    def test_links(self):
        self.silent({"README.md": "# A b\n[x](docs/y.md#c-d) [up](#a-b)\n", "docs/y.md": "## C d\n"})
        self.fires({"README.md": "[x](docs/no.md)\n"}, "leads nowhere")
        self.fires({"README.md": '<img src="no.svg">\n'}, "leads nowhere")
        self.fires({"README.md": "[x](docs/y.md#no)\n", "docs/y.md": "# C\n"}, "no such heading")

    def test_pages_are_reached(self):
        self.fires({"README.md": "hello\n", "docs/y.md": "# C\n"}, "no link leads here")
        self.silent({"README.md": "[all](docs)\n", "docs/y.md": "# C\n"})

    def test_sources_are_built(self):
        self.fires({"src/node/x.cc": "int x;\n"}, "nothing builds it")


class Reader(unittest.TestCase):
    def names(self, text):
        return [(f.name, f.first, f.last) for f in cxx.functions(text)]

    def test_functions_of_all_shapes(self):
        self.assertEqual(self.names("namespace a {\nclass B : public C<int> {\n  int f() const { return 1; }\n};\n}\n"), [("f", 3, 3)])
        self.assertEqual(self.names("template <typename T = int>\nauto f(T x) -> std::vector<T> {\n  if (x) { g(); }\n}\n"), [("f", 1, 4)])
        self.assertEqual(self.names("X::X() : a_{1}, b_(2) {\n  f();\n}\n"), [("X", 1, 3)])
        self.assertEqual(self.names('extern "C" {\nint f(void) { return 0; }\n}\nextern "C" int g() { return 1; }\n'), [("f", 2, 2), ("g", 4, 4)])
        self.assertEqual(self.names("TEST(Suite, Case) {\n  auto l = [] { return 1; };\n}\n"), [("TEST(Suite , Case)", 1, 3)])
        self.assertEqual(self.names("struct stat f() {\n}\nbool operator==(A a, B b) { return true; }\n"), [("f", 1, 2), ("=", 3, 3)])

    def test_what_is_no_function(self):
        self.assertEqual(self.names("int x[] = {1, 2};\nenum class E : int { kA };\nstruct S {\n  int a = 1;\n  int b{2};\n};\n"), [])
        self.assertEqual(self.names('const char* s = "void f() {";  // void g() {\n/* h() { */ char c = \'{\';\n#define M(x) { x\n'), [])
        self.assertEqual(self.names('auto s = R"x(void f() {)x";\nauto l = [](int a) { return a; };\n'), [])

    def test_a_function_after_data(self):
        self.assertEqual(self.names("int x[] = {1};\nconst S s{1, 2};\nvoid f() {\n}\n"), [("f", 3, 4)])


class Headers(unittest.TestCase):
    def run_on(self, text, folder="node"):
        with tempfile.TemporaryDirectory() as root:
            (Path(root) / "src" / folder).mkdir(parents=True)
            (Path(root) / "src" / folder / "x.h").write_text(text, encoding="utf-8")
            what = [sys.executable, HERE / "headers.py", "--root", root, "--clang", CLANG, "--vendor", root, "--stamps", f"{root}/stamps"]
            first = subprocess.run(what, capture_output=True, text=True, check=False)
            again = subprocess.run(what, capture_output=True, text=True, check=False)
            self.assertEqual(first.returncode, again.returncode, "a stamp hides nothing")
            return first

    def test_headers_compile_alone(self):
        self.assertEqual(self.run_on("#pragma once\n#include <vector>\ninline std::vector<int> v;\n").returncode, 0)
        bad = self.run_on("#pragma once\ninline std::vector<int> v;\n")
        self.assertEqual(bad.returncode, 1)
        self.assertIn("src/node/x.h does not compile alone", bad.stdout)

    def test_lease_needs_no_cxx_library(self):
        self.assertEqual(self.run_on("#pragma once\n#include <stdint.h>\ninline uint32_t v;\n", "lease").returncode, 0)
        self.assertEqual(self.run_on("#pragma once\n#include <vector>\n", "lease").returncode, 1)


if __name__ == "__main__":
    if "--clang" in sys.argv:
        at = sys.argv.index("--clang")
        CLANG = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    unittest.main()
