#!/usr/bin/env python3
"""Every header compiles alone. headers.py --clang CLANG --vendor FOLDER --stamps FOLDER [--root FOLDER] [--include FOLDER...] [--jobs N]

A header that passed is not compiled again until it, or a header of the tree that it reaches, changes: a stamp named after their hash says so.
"""
import argparse
import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cxx
import layout
import tidy

TOPS = ("src/", "apps/", "tests/", "bench/")


def reach(root, path, seen):
    """The headers of the tree that a file includes, itself too, through any number of others."""
    if path in seen or not (root / path).is_file():
        return seen
    seen.add(path)
    for _, include, quoted in cxx.includes((root / path).read_text(encoding="utf-8")):
        if quoted:
            reach(root, f"src/{include}", seen)
            reach(root, str(Path(path).parent / include), seen)
    return seen


def command(args, root, path):
    flags = ["-x", "c++", "-std=c++23", "-fsyntax-only", "-w", f"-I{root}/src", f"-I{root}/{Path(path).parent}", f"-isystem{args.vendor}"]
    flags += [f"-I{i}" for i in args.include]
    if tidy.folder_of(path)[1] in layout.FREESTANDING_FOLDERS and not tidy.is_test(path):
        flags.append("-nostdinc++")  # no header of the C++ library may be needed
    return [args.clang, *flags, f"{root}/{path}"]


def check(args, root, path):
    """None, or what the compiler said."""
    what = command(args, root, path)
    key = hashlib.sha256(repr(what).encode())
    for reached in sorted(reach(root, path, set())):
        key.update(reached.encode() + (root / reached).read_bytes())
    stamp = Path(args.stamps) / key.hexdigest()
    if stamp.exists():
        return None
    done = subprocess.run(what, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        stamp.touch()
        return None
    return done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=str(Path(__file__).resolve().parents[2]))
    parser.add_argument("--clang", required=True)
    parser.add_argument("--vendor", required=True)
    parser.add_argument("--stamps", required=True)
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    root = Path(args.root)
    Path(args.stamps).mkdir(parents=True, exist_ok=True)
    headers = [f for f in tidy.tracked(args.root) if f.endswith(".h") and f.startswith(TOPS)]
    with ThreadPoolExecutor(args.jobs) as pool:
        said = list(pool.map(lambda h: check(args, root, h), headers))
    bad = [(h, s) for h, s in zip(headers, said) if s]
    for header, sentence in bad:
        print(f"{header} does not compile alone:\n{sentence}")
    print(f"headers: {len(headers)} headers, {len(bad)} that do not compile alone")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
