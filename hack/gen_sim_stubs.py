#!/usr/bin/env python3
"""Writes the simulated driver's stubs and its table of entry points.

gen_sim_stubs.py --symbols cuda_symbols.json --typedefs cudaTypedefs.h --header cuda.h --out sim_stubs.c

Every name of the driver gets a weak definition that counts the call and returns CUDA_ERROR_NOT_SUPPORTED; a body in src/simgpu is a strong definition
and takes its place when the library is linked. The table gives, for cuGetProcAddress, each entry point's base name, the stream variant, the
CUDA version that brought it (from NVIDIA's cudaTypedefs.h), the function and its stub (equal when there is no body). The codes of CUresult come
with their names from cuda.h, and with the words of the name as their text.
"""
import argparse
import json
import re
import sys

VARIANT = re.compile(r"^(cu\w+?)(_v(\d+))?(_pt[sd][sz])?$")


def typedef_versions(text):
    """(base, per-thread?) -> ascending list of CUDA versions in which a new form of the function came."""
    found = {}
    for match in re.finditer(r"\*PFN_(cu\w+?)_v(\d{4,5})(_pt[sd][sz])?\)", text):
        base, version, per_thread = match.groups()
        found.setdefault((base, per_thread is not None), set()).add(int(version))
    return {key: sorted(versions) for key, versions in found.items()}


def split(name):
    base, _, number, per_thread = VARIANT.match(name).groups()
    return base, int(number or 1), per_thread or ""


def rows(names, versions):
    groups = {}
    for name in names:
        base, number, per_thread = split(name)
        groups.setdefault((base, per_thread != ""), []).append((number, name))
    for (base, per_thread), forms in sorted(groups.items()):
        forms.sort()
        known = versions.get((base, per_thread), [])
        # The newest typedef belongs to the newest form; forms older than the typedefs count as there from the start.
        for back, (number, name) in enumerate(reversed(forms)):
            version = known[-1 - back] if back < len(known) else (known[0] if known else 2000)
            yield name, base, per_thread, version, number


def errors(text):
    """(code, name, words) of every CUresult."""
    body = re.search(r"typedef enum cudaError_enum \{(.*?)\} CUresult;", text, re.S).group(1)
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    for name, code in re.findall(r"\b(CUDA_\w+)\s*=\s*(\d+)", body):
        yield int(code), name, "no error" if code == "0" else name.removeprefix("CUDA_ERROR_").lower().replace("_", " ")


def main():
    parser = argparse.ArgumentParser()
    for option in ("symbols", "typedefs", "header", "out"):
        parser.add_argument("--" + option, required=True)
    args = parser.parse_args()
    with open(args.symbols, encoding="utf-8") as f:
        names = [row["name"] for row in json.load(f)]
    with open(args.typedefs, encoding="utf-8") as f:
        versions = typedef_versions(f.read())
    with open(args.header, encoding="utf-8") as f:
        codes = list(errors(f.read()))
    if len(names) < 600 or len(versions) < 300 or len(codes) < 80:
        sys.exit(f"gen_sim_stubs: {len(names)} names, {len(versions)} typedefs and {len(codes)} error codes are too few: the inputs are not what "
                 "they should be")
    table = list(rows(names, versions))
    out = ["/* Made by hack/gen_sim_stubs.py. */", '#include "simgpu/stubs.h"', ""]
    out.append("int kvsim_unsupported(const char* name);")
    out.append("#define STUB(name) \\")
    out.append("  static int stub_##name(void) { return kvsim_unsupported(#name); } \\")
    out.append('  __attribute__((weak, alias("stub_" #name), visibility("default"))) int name(void);')
    for row in table:
        out.append(f"STUB({row[0]})")
    out.append("")
    out.append("const struct kvram_sim_entry kvram_sim_entries[] = {")
    for name, base, per_thread, version, number in table:
        out.append(f'  {{"{name}", "{base}", {int(per_thread)}, {version}, {number}, (void*){name}, (void*)stub_{name}}},')
    out.append("};")
    out.append(f"const unsigned kvram_sim_entry_count = {len(table)};")
    out.append("const struct kvram_sim_error kvram_sim_errors[] = {")
    out += [f'  {{{code}, "{name}", "{words}"}},' for code, name, words in codes]
    out.append("};")
    out.append(f"const unsigned kvram_sim_error_count = {len(codes)};")
    with open(args.out, "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
