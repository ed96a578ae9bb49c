#!/usr/bin/env python3
"""Checks the guard's classification against the driver's functions and writes what follows from it.

gen_guard.py --classes src/guard/classes.txt --cuda cuda_symbols.json --nvml nvml_symbols.json --typedefs cudaTypedefs.h --out DIR

Fails on a function without a class, a class for a function that does not exist, and a name with two classes. Writes
  cuda_names.h, nvml_names.h   the wrapped and the resolved functions, as enumerators and X-macros
  cuda.map, nvml.map           version scripts: what the libraries export
  cuda_known.inc               hashes of all known names, sorted
  cuda_rows.inc                {name, class, wrapped} of every function, for tests
  table.json                   the whole classification, for tests and docs
"""
import argparse
import json
import os
import re
import sys

CLASSES = {"account", "implicit", "release", "share", "residency", "report", "gate", "route", "harmless"}
TWIN = re.compile(r"_pt[sd][sz]$")


def fail(lines):
    sys.exit("\n".join("gen_guard: " + line for line in lines))


def parse(path):
    """(name -> (class, how, note), section helpers: name -> list)"""
    table, helpers, errors = {}, {"cuda": [], "nvml": []}, []
    section, note = None, []
    with open(path, encoding="utf-8") as f:
        for line in f:
            line = line.strip()
            if line.startswith("#"):
                note.append(line[1:].strip())
            elif line.startswith("["):
                section = tuple(line.strip("[]").split())
                if section[0] not in CLASSES | {"nvml", "helper"}:
                    errors.append(f"unknown class {section[0]}")
            elif not line:
                note = []
            else:
                for name in line.split():
                    if section[0] == "helper":
                        helpers[section[1]].append(name)
                    elif name in table:
                        errors.append(f"{name} is classified twice")
                    else:
                        table[name] = (section[0], section[1], " ".join(note))
    if errors:
        fail(errors)
    return table, helpers


def check(table, helpers, cuda, nvml):
    known = {e["name"] for e in cuda}
    bases = {TWIN.sub("", n) for n in known}
    mine = {n for n, (c, _, _) in table.items() if c != "nvml"}
    errors = [f"{n} has no class in classes.txt" for n in sorted(bases - mine)]
    errors += [f"{n} is classified, but neither cuda.h nor the driver's list has it" for n in sorted(mine - bases)]
    errors += [f"{n} is no function of nvml.h" for n, (c, _, _) in table.items() if c == "nvml" and n not in nvml]
    errors += [f"helper {n} is unknown" for n in helpers["cuda"] if n not in known]
    declared = {e["name"] for e in cuda if e["params"] is not None}
    errors += [f"{n} is wrapped but cuda.h does not declare it" for n, (c, how, _) in table.items()
               if c != "nvml" and how == "wrap" and n not in declared]
    if errors:
        fail(errors)


def first_versions(path, names):
    """wrapped name -> CUDA version that brought it, from the PFN_ types: variants and versions come in the same order."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    versions = {}
    for base, version in re.findall(r"\bPFN_(cu\w+?)_v(\d{4,5})(?:_pt[sd][sz])?\b", text):
        versions.setdefault(base, set()).add(int(version))
    result = {}
    groups = {}
    for name in {TWIN.sub("", n) for n in names}:
        base = re.sub(r"_v\d$", "", name)
        groups.setdefault(base, []).append(name)
    for base, variants in groups.items():
        variants.sort(key=lambda n: int(n[-1]) if re.search(r"_v\d$", n) else 1)
        known = sorted(versions.get(base, []))
        for i, name in enumerate(variants):
            result[name] = known[min(i, len(known) - 1)] if known else 0
    return {n: result[TWIN.sub("", n)] for n in names}


def fnv(name):
    h = 0xcbf29ce484222325
    for c in name.encode():
        h = (h ^ c) * 0x100000001b3 & 0xffffffffffffffff
    return h


def names_header(space, wrapped, helpers, versions):
    out = ["// Made by hack/gen_guard.py.", "#pragma once", f"namespace kvram::guard::{space} {{", "enum Sym : unsigned {"]
    everything = wrapped + [h for h in helpers if h not in wrapped]
    out += [f"  k_{n}," for n in everything] + ["  kCount,", f"  kWrapped = {len(wrapped)}", "};", "}"]
    out.append(f"// X(symbol, name a program asks cuGetProcAddress for, version that brought it, per-thread variant)")
    out.append(f"#define KV_{space.upper()}_WRAPPED(X) \\")
    for n in wrapped:
        base = re.sub(r"_v\d$", "", TWIN.sub("", n))
        out.append(f'  X({n}, "{base}", {versions.get(n, 0)}, {int(bool(TWIN.search(n)))}) \\')
    out += ["", f"#define KV_{space.upper()}_RESOLVED(X) \\"] + [f"  X({n}) \\" for n in everything] + [""]
    return "\n".join(out)


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text + "\n")


def main():
    parser = argparse.ArgumentParser()
    for option in ("classes", "cuda", "nvml", "typedefs", "out"):
        parser.add_argument("--" + option, required=True)
    args = parser.parse_args()
    table, helpers = parse(args.classes)
    with open(args.cuda, encoding="utf-8") as f:
        cuda = json.load(f)
    with open(args.nvml, encoding="utf-8") as f:
        nvml = {e["name"] for e in json.load(f)}
    check(table, helpers, cuda, nvml)
    names = sorted(e["name"] for e in cuda)
    with_twins = [n for n in names if table[TWIN.sub("", n)][1] == "wrap"]
    helper_names = [n for n in names if TWIN.sub("", n) in helpers["cuda"]]
    nvml_names = sorted(n for n, (c, _, _) in table.items() if c == "nvml")
    versions = first_versions(args.typedefs, with_twins)
    os.makedirs(args.out, exist_ok=True)
    write(f"{args.out}/cuda_names.h", names_header("cuda", with_twins, helper_names, versions))
    write(f"{args.out}/nvml_names.h", names_header("nvml", nvml_names, helpers["nvml"], {}))
    for space, exported in (("cuda", with_twins), ("nvml", nvml_names)):
        write(f"{args.out}/{space}.map", "{ global:\n" + "".join(f"  {n};\n" for n in exported) + "  local: *;\n};")
    hashes = sorted(fnv(n) for n in names)
    write(f"{args.out}/cuda_known.inc", "\n".join(f"0x{h:016x}ULL," for h in hashes))
    write(f"{args.out}/cuda_rows.inc", "\n".join(f'{{"{n}", "{table[TWIN.sub("", n)][0]}", {int(n in with_twins)}}},' for n in names))
    rows = [{"name": n, "class": table[TWIN.sub("", n)][0], "how": table[TWIN.sub("", n)][1], "note": table[TWIN.sub("", n)][2],
             "variant_of": TWIN.sub("", n) if TWIN.search(n) else None} for n in names]
    write(f"{args.out}/table.json", json.dumps(rows, indent=0))


if __name__ == "__main__":
    main()
