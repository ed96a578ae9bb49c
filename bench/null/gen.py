#!/usr/bin/env python3
"""Writes the names of the null driver: gen.py cuda_symbols.json out.c

A weak definition of every function of the driver that answers "not supported" (bench/null/null.c has the strong ones), and a table, sorted by
name, of the newest form of each function for cuGetProcAddress.
"""
import json
import re
import sys

VARIANT = re.compile(r"(.+?)(?:_v(\d+))?(_pt[sd][sz])?$")


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        names = [row["name"] for row in json.load(f)]
    newest = {}
    for name in names:
        base, number, per_thread = VARIANT.match(name).groups()
        key = (base, bool(per_thread))
        newest[key] = max(newest.get(key, (0, "")), (int(number or 1), name))
    out = ["/* Made by bench/null/gen.py. */", '#include "null.h"']
    out += [f'__attribute__((weak, visibility("default"))) int {n}(void) {{ return KV_NULL_NOT_SUPPORTED; }}' for n in names]
    out.append("const struct kv_null_entry kv_null_entries[] = {")
    for base in sorted({b for b, _ in newest}):
        plain = newest.get((base, False), newest.get((base, True)))[1]
        per_thread = newest.get((base, True), (0, plain))[1]
        out.append(f'  {{"{base}", (void*){plain}, (void*){per_thread}}},')
    out += ["};", "const unsigned kv_null_entry_count = sizeof kv_null_entries / sizeof kv_null_entries[0];"]
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
