#!/usr/bin/env python3
"""Writes data/gpus.json as C++ rows: gen_gpu_catalogue.py gpus.json out.inc"""
import json
import sys

KIB, MIB = 1024, 1024 * 1024


def row(gpu, d):
    costs = [gpu["context_mib"] * MIB, d["green_context_mib"] * MIB, d["module_page_kib"] * KIB, d["stream_kib"] * KIB,
             d["graph_exec_kib"] * KIB, d["pool_chunk_mib"] * MIB]
    text = f'GPU("{gpu["key"]}", "{gpu["name"]}", {gpu["total_mib"] * MIB}ULL, {gpu["reserve_mib"] * MIB}ULL, (Costs{{'
    text += ", ".join(f"{c}ULL" for c in costs)
    plain = [gpu["sms"], *gpu["cc"], gpu["sm_clock_mhz"], gpu["memory_clock_mhz"], gpu["bus_bits"], gpu["l2_kib"] * KIB, gpu["power_w"],
             gpu["idle_w"], gpu["threads_per_sm"], gpu["shared_per_sm_kib"] * KIB]
    return text + "}), " + ", ".join(str(p) for p in plain) + ")"


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        data = json.load(f)
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write("\n".join(row(gpu, {**data["defaults"], **gpu}) for gpu in data["gpus"]) + "\n")


if __name__ == "__main__":
    main()
