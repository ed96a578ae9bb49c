#!/usr/bin/env python3
"""Runs clang-tidy over the project's own files and shellcheck over its scripts. lint.py --build FOLDER [--jobs N] [--no-cache] [FILE...]

A file that passed is not looked at again until it, a header of the tree that it reaches, its compile command, .clang-tidy or clang-tidy itself
changes: stamps in the user's cache folder (hack/setup --print-cache) say so.
"""
import argparse
import hashlib
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "tidy"))
import headers  # noqa: E402
import tidy  # noqa: E402

CLANG_TIDY = "clang-tidy-19"
CONFIGS = [ROOT / ".clang-tidy", ROOT / "tests" / ".clang-tidy"]


def output(*what):
    return subprocess.run(what, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def units(build, wanted):
    """{path: compile command} of the tree's own files, generated ones left out."""
    own = set(tidy.tracked(str(ROOT)))
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = str(Path(entry["file"]).resolve().relative_to(ROOT)) if Path(entry["file"]).resolve().is_relative_to(ROOT) else ""
        if path in own and (not wanted or path in wanted):
            found.setdefault(path, entry["command"])
    return found


def key_of(path, command, common):
    key = hashlib.sha256(common)
    key.update(command.replace(str(ROOT), ".").encode())
    for reached in sorted(headers.reach(ROOT, path, set())):
        key.update(reached.encode() + (ROOT / reached).read_bytes())
    return key.hexdigest()


def tidy_one(build, path):
    """("", seconds) or (what clang-tidy found, seconds)."""
    start = time.monotonic()
    done = subprocess.run([CLANG_TIDY, "-p", build, "--quiet", path], capture_output=True, text=True, check=False, cwd=ROOT)
    said = re.sub(r"^\d+ warnings.*\n|^Suppressed .*\n|^Use -header.*\n", "", done.stdout + done.stderr, flags=re.MULTILINE)
    return (said if done.returncode else ""), time.monotonic() - start


def run_tidy(args, stamps):
    common = output(CLANG_TIDY, "--version").encode() + b"".join(c.read_bytes() for c in CONFIGS)
    todo = {}
    for path, command in units(args.build, args.files).items():
        stamp = stamps / key_of(path, command, common)
        if args.no_cache or not stamp.exists():
            todo[path] = stamp
    print(f"lint: clang-tidy over {len(todo)} files", flush=True)
    bad = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        running = {pool.submit(tidy_one, args.build, path): path for path in sorted(todo, key=lambda p: -(ROOT / p).stat().st_size)}
        for number, done in enumerate(as_completed(running), 1):
            said, seconds = done.result()
            path = running[done]
            print(f"[{number}/{len(todo)}] {path} {seconds:.1f} s{' FAILED' if said else ''}", flush=True)
            if said:
                bad += 1
                print(said, flush=True)
            else:
                todo[path].touch()
    return bad


def scripts():
    for path in tidy.tracked(str(ROOT)):
        with (ROOT / path).open("rb") as f:
            if re.match(rb"#!.*\b(bash|sh)\b", f.read(64)):
                yield path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-cache", action="store_true")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    args.build = args.build.resolve()
    stamps = Path(output("hack/setup", "--print-cache").strip()) / "clang-tidy"
    stamps.mkdir(parents=True, exist_ok=True)
    shell = subprocess.run(["shellcheck", *scripts()], cwd=ROOT, check=False).returncode
    bad = run_tidy(args, stamps)
    print(f"lint: {bad} files with findings, shellcheck {'failed' if shell else 'passed'}")
    sys.exit(1 if bad or shell else 0)


if __name__ == "__main__":
    main()
