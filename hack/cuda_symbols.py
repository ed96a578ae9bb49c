#!/usr/bin/env python3
"""Lists every function of the CUDA driver or of NVML: what the header declares (all versions, per-thread variants too) and what a driver
library of a known release exports.

cuda_symbols.py --clang CLANG --header cuda.h --exports names.txt --json out.json
cuda_symbols.py --clang CLANG --header nvml.h --json out.json
Each entry: name, ret, params [[type, name], ...] (null where the header does not declare it), exported (by the listed release).

--stubs out.c writes a weak definition of every name, which counts the call and answers "not supported": a library that links it exports
all names, and its own definitions win.
"""
import argparse
import json
import re
import subprocess
import sys


def declared(clang, header):
    """name -> (return type, [[type, name], ...]) for every prototype, as the preprocessor leaves it."""
    text = subprocess.run(
        [clang, "-E", "-P", "-x", "c", "-D__CUDA_API_VERSION_INTERNAL", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", header],
        check=True, capture_output=True, text=True).stdout
    found = {}
    for match in re.finditer(r"\b(CUresult|nvmlReturn_t|const char\s*\*)\s*((?:cu|nvml)[A-Z]\w*)\s*\(([^;{}]*)\)\s*;", text):
        ret, name, params = match.groups()
        found[name] = (ret, split_params(params))
    return found


def split_params(text):
    text = " ".join(text.split())
    if text in ("", "void"):
        return []
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [split_param(p.strip(), i) for i, p in enumerate(parts)]


def split_param(text, index):
    array = re.match(r"(.*?)(\w+)\s*(\[[^\]]*\])$", text)
    if array:
        return [array.group(1).strip() + "*", array.group(2)]
    match = re.match(r"(.*[\s*])(\w+)$", text)
    if match and not re.fullmatch(r"(const\s+)?(unsigned|signed|struct|enum)\s*", match.group(1)):
        return [match.group(1).strip(), match.group(2)]
    return [text, f"arg{index}"]


def stubs(table):
    """C source: the answer of kvsim_unsupported(name), whatever the arguments; legal because the caller removes them."""
    lines = ["/* Made by hack/cuda_symbols.py: names that the simulated driver has and does not model. */",
             "int kvsim_unsupported(const char* name);"]
    for entry in table:
        name = entry["name"]
        lines.append(f'__attribute__((weak, visibility("default"))) int {name}(void);')
        lines.append(f'int {name}(void) {{ return kvsim_unsupported("{name}"); }}')
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    for option in ("clang", "header"):
        parser.add_argument("--" + option, required=True)
    for option in ("exports", "json", "stubs"):
        parser.add_argument("--" + option)
    args = parser.parse_args()
    known = declared(args.clang, args.header)
    exports = set(known)
    if args.exports:
        with open(args.exports, encoding="utf-8") as f:
            exports = {line.strip() for line in f if line.strip() and not line.startswith("#")}
    if len(known) < 400 or len(exports) < 400:
        sys.exit(f"cuda_symbols: only {len(known)} prototypes and {len(exports)} exports found: the inputs are not what they should be")
    table = []
    for name in sorted(known.keys() | exports):
        ret, params = known.get(name, (None, None))
        table.append({"name": name, "ret": ret, "params": params, "exported": name in exports})
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(table, f, indent=0)
    if args.stubs:
        with open(args.stubs, "w", encoding="utf-8") as f:
            f.write(stubs(table))


if __name__ == "__main__":
    main()
