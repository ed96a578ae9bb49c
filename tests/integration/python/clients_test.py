#!/usr/bin/env python3
"""nvidia-ml-py and cuda-bindings from PyPI, unmodified: on the simulated driver, and in a budget of `vram run` with each of its two modes.

clients_test.py --prefix BUILD CASE...     CASE: TestSimulated, TestNamespace, TestPath, or one test of them
Exit status 77, with the reason, where PyPI cannot be reached and so the packages cannot be had.
"""
import argparse
import json
import subprocess
import sys
import unittest
from pathlib import Path

from machine import Machine, eventually, namespaces_allowed

ROOT = Path(__file__).resolve().parents[3]
MIB, GIB = 1 << 20, 1 << 30
SETUP = {}


def round_up(value, step):
    return -(-value // step) * step


def catalogue():
    """GPU key -> bytes of the card, of the driver's reserve, of a context, and the step in which a pool grows."""
    with open(ROOT / "data/gpus.json", encoding="utf-8") as f:
        data = json.load(f)
    wanted = {"total_mib": "total_bytes", "reserve_mib": "reserve_bytes", "context_mib": "context_bytes", "pool_chunk_mib": "pool_chunk_bytes"}
    return {gpu["key"]: {name: {**data["defaults"], **gpu}[field] * MIB for field, name in wanted.items()} for gpu in data["gpus"]}


class Base(unittest.TestCase):
    spec = "2xA10"
    model = "A10"

    def setUp(self):
        self.machine = Machine(SETUP["prefix"], SETUP["python"], self.spec)
        self.addCleanup(self.machine.close)
        self.gpu = SETUP["catalogue"][self.model]
        self.context = self.gpu["context_bytes"]
        self.capacity = self.gpu["total_bytes"] - self.gpu["reserve_bytes"]

    def assert_report(self, report, total, free, nvml_total=None):
        """CUDA and NVML say the same, to the byte."""
        cuda, nvml = report["cuda"], report["nvml"]
        nvml_total = nvml_total or total
        self.assertEqual((cuda["total"], cuda["device_total"]), (total, total), "CUDA's total")
        self.assertEqual((nvml["total"], nvml["total_v2"]), (nvml_total, nvml_total), "NVML's total")
        self.assertEqual((cuda["free"], nvml["free"], nvml["free_v2"]), (free, free, free), "free: CUDA, NVML v1, NVML v2")
        self.assertEqual(cuda["uuid"], nvml["uuid"])


class TestSimulated(Base):
    """Without a guard: the packages meet a driver that behaves like one."""

    def test_reports_and_exact_bytes(self):
        one, two = self.machine.outside(), self.machine.outside()
        pid, other = one.ask("open", gpu=0)["pid"], two.ask("open", gpu=0)["pid"]
        free = self.capacity - 2 * self.context
        report = one.ask("report")
        self.assert_report(report, self.capacity, free, self.gpu["total_bytes"])
        self.assertEqual((report["cuda"]["devices"], report["nvml"]["devices"]), (2, 2))
        self.assertEqual(two.ask("alloc", bytes=GIB + 1)["status"], "CUDA_SUCCESS")
        report = one.ask("report")
        self.assert_report(report, self.capacity, free - GIB - 512, self.gpu["total_bytes"])
        self.assertCountEqual(report["nvml"]["processes"], [{"pid": pid, "bytes": self.context}, {"pid": other, "bytes": self.context + GIB + 512}])
        self.assertEqual(two.end(), 0)
        self.machine.programs.remove(two)
        self.assert_report(one.ask("report"), self.capacity, self.capacity - self.context, self.gpu["total_bytes"])

    def test_refused_when_the_card_is_full(self):
        one = self.machine.outside()
        one.ask("open", gpu=1)
        self.assertEqual(one.ask("alloc", bytes=self.capacity)["status"], "CUDA_ERROR_OUT_OF_MEMORY")
        self.assertEqual(one.ask("alloc", bytes=self.capacity - self.context)["status"], "CUDA_SUCCESS")
        self.assertEqual(one.ask("report")["cuda"]["free"], 0)

    def test_each_kind_of_memory(self):
        one = self.machine.outside()
        one.ask("open", gpu=0)
        free = self.capacity - self.context
        for how, cost in (("linear", 4 * MIB), ("vmm", 4 * MIB), ("async", round_up(4 * MIB, self.gpu["pool_chunk_bytes"]))):
            block = one.ask("alloc", bytes=4 * MIB, how=how)
            self.assertEqual(one.ask("report")["nvml"]["free"], free - cost, how)
            one.ask("free", id=block["id"])
            self.assertEqual(one.ask("report")["cuda"]["free"], free, how)


class InBudget:
    """The same checks in both modes."""
    options = ()
    mode = ""

    def start(self, memory, gpu=0):
        program = self.machine.in_budget(memory, *self.options)
        program.pid = program.ask("open", gpu=gpu)["pid"]
        return program

    def test_mode(self):
        self.start(2 * GIB)
        budget = self.machine.vram("ps")["budgets"][0]
        self.assertEqual((budget["mode"], budget["gpus"][0]["limit"]), (self.mode, 2 * GIB))

    def test_total_is_the_limit_and_free_is_what_is_left(self):
        limit = 6 * GIB
        program = self.start(limit)
        free = limit - self.context
        self.assert_report(program.ask("report"), limit, free)
        blocks = []
        for size, how in ((1, "linear"), (3 * MIB + 1, "linear"), (64 * MIB, "vmm"), (1 * GIB, "linear")):
            blocks.append((program.ask("alloc", bytes=size, how=how)["id"], round_up(size, 512)))
            free -= blocks[-1][1]
            self.assert_report(program.ask("report"), limit, free)
        ledger = self.machine.vram("ps")["budgets"][0]["gpus"][0]
        self.assertEqual((ledger["charged"], ledger["resident"]), (limit - free, limit - free))
        for number, cost in blocks:
            program.ask("free", id=number)
            free += cost
            self.assert_report(program.ask("report"), limit, free)
        self.assertEqual(free, limit - self.context)

    def test_pool_is_charged_as_it_grows_and_shrinks(self):
        limit = 2 * GIB
        program = self.start(limit)
        block = program.ask("alloc", bytes=5 * MIB, how="async")
        self.assert_report(program.ask("report"), limit, limit - self.context - round_up(5 * MIB, self.gpu["pool_chunk_bytes"]))
        program.ask("free", id=block["id"])
        self.assert_report(program.ask("report"), limit, limit - self.context)

    def test_free_is_what_the_card_has_when_that_is_less(self):
        limit = 16 * GIB
        program = self.start(limit)
        foreign = self.machine.outside()
        # Which of the two GPUs is the budget's: the foreign program takes the same one.
        uuid = program.ask("report")["cuda"]["uuid"]
        index = next(g["index"] for g in self.machine.vram("gpus")["gpus"] if g["uuid"] == uuid)
        foreign.ask("open", gpu=index)
        self.assertEqual(foreign.ask("alloc", bytes=18 * GIB)["status"], "CUDA_SUCCESS")
        left = self.capacity - 18 * GIB - 2 * self.context
        self.assertLess(left, limit - self.context)
        self.assert_report(program.ask("report"), limit, left)
        self.assertEqual(program.ask("alloc", bytes=left + 1)["status"], "CUDA_ERROR_OUT_OF_MEMORY")
        self.assertEqual(program.ask("alloc", bytes=left)["status"], "CUDA_SUCCESS")
        self.assert_report(program.ask("report"), limit, 0)
        foreign.end()
        self.machine.programs.remove(foreign)
        self.assert_report(program.ask("report"), limit, limit - self.context - round_up(left, 512))

    def test_processes_of_the_budget_and_no_others(self):
        program = self.start(3 * GIB)
        uuid = program.ask("report")["cuda"]["uuid"]
        neighbours = [self.start(2 * GIB), self.start(2 * GIB), self.machine.outside(), self.machine.outside()]
        neighbours[2].ask("open", gpu=0)
        neighbours[3].ask("open", gpu=1)
        child = program.ask("child", request={"do": "open", "gpu": 0})["pid"]
        program.ask("child", request={"do": "alloc", "bytes": 100 * MIB})
        self.assertNotEqual(child, program.pid)
        report = program.ask("report")
        self.assertEqual((report["cuda"]["devices"], report["nvml"]["devices"]), (1, 1))
        self.assertEqual(report["nvml"]["uuid"], uuid)
        self.assertCountEqual(report["nvml"]["processes"], [{"pid": program.pid, "bytes": self.context},
                                                            {"pid": child, "bytes": self.context + 100 * MIB}])
        self.assert_report(report, 3 * GIB, 3 * GIB - 2 * self.context - 100 * MIB)
        self.assertEqual(neighbours[0].ask("report")["nvml"]["processes"], [{"pid": neighbours[0].pid, "bytes": self.context}])

    def test_refused_and_tried_again(self):
        limit = 2 * GIB
        program = self.start(limit)
        held = program.ask("alloc", bytes=1 * GIB)
        rest = limit - self.context - 1 * GIB
        for how in ("linear", "vmm", "async"):
            self.assertEqual(program.ask("alloc", bytes=1 * GIB, how=how)["status"], "CUDA_ERROR_OUT_OF_MEMORY", how)
            self.assert_report(program.ask("report"), limit, rest)
        self.assertEqual(program.ask("alloc", bytes=rest + 1)["status"], "CUDA_ERROR_OUT_OF_MEMORY")
        program.ask("free", id=held["id"])
        self.assertEqual(program.ask("alloc", bytes=limit - self.context)["status"], "CUDA_SUCCESS")
        self.assert_report(program.ask("report"), limit, 0)
        self.assertTrue(eventually(lambda: self.machine.vram("oom")["counted"]["overcome"] > 0), "a retry overcame the refusals")

    def test_a_last_refusal_is_explained(self):
        program = self.start(1 * GIB)
        self.assertEqual(program.ask("alloc", bytes=5 * GIB)["status"], "CUDA_ERROR_OUT_OF_MEMORY")
        told = self.machine.vram("oom", "last")["oom"]
        self.assertEqual((told["pid"], told["asked"], told["limit"]), (program.pid, 5 * GIB, 1 * GIB))
        self.assertEqual(told["would_fit"], 1 * GIB - self.context)


class TestNamespace(InBudget, Base):
    mode = "namespace"

    def setUp(self):
        if not namespaces_allowed():
            self.skipTest("this system allows no mount namespace")
        super().setUp()


class TestPath(InBudget, Base):
    mode = "path"
    options = ("--no-namespace",)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefix", required=True)
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    found = subprocess.run([ROOT / "hack/python-clients"], stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode != 0:
        print("skipped: PyPI cannot be reached" if found.returncode == 77 else "hack/python-clients failed", flush=True)
        sys.exit(found.returncode)
    SETUP.update(prefix=args.prefix, python=found.stdout.strip(), catalogue=catalogue())
    unittest.main(argv=[sys.argv[0], "-v", *args.cases])


if __name__ == "__main__":
    main()
