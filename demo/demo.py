#!/usr/bin/env python3
"""The story of kube-vram on one simulated 24 GiB card, in scenes; every figure is checked. demo.py --prefix BUILD_FOLDER

Draws on a terminal, prints plain lines otherwise. Exits 1 and says which figure is off, if one is. What it starts (daemon, programs, folders
for their state) is its own and is gone when it ends.
"""
import argparse
import sys
import time

from stage import KIB, MIB, GIB, Stage, human

CARD = "A10"
A_LIMIT, B_LIMIT, C_ASKED, D_LIMIT = 6 * GIB, 4 * GIB, 16 * GIB, 6 * GIB
A_BLOCK, B_BLOCK, OUTSIDE = 5 * GIB, 3 * GIB, 2 * GIB


def the_card(s):
    s.scene("One card", f"A simulated {CARD}. No GPU and no Kubernetes is needed here.")
    s.show("gpus")
    gpu = s.gpu()
    s.check("the output says that the card is simulated", s.json("gpus")["simulated"], True)
    s.check("total of the card, as an A10 of 24 GB shows it", gpu["total"], 23028 * MIB)
    s.check("free = total - driver's reserve", gpu["free"], gpu["total"] - gpu["reserved"])
    return gpu


def two_programs(s, card):
    s.scene("Two programs on it", "A asks for 6Gi, B for 4Gi. Counting devices would leave B waiting for A to end; counting bytes does not.")
    a = s.start("A", "run", "--memory", "6Gi", "--", s.program("alloc"), "5Gi", "--hold")
    s.holding(a, A_BLOCK)  # before B asks, so that budgets are numbered as they are told
    b = s.start("B", "run", "--memory", "4Gi", "--", s.program("alloc"), "3Gi", "--hold")
    s.holding(b, B_BLOCK)
    s.show("top", "--once")
    context = s.context_bytes()
    for process, limit, block in ((a, A_LIMIT, A_BLOCK), (b, B_LIMIT, B_BLOCK)):
        share = s.share(process)
        s.check(f"{process.name}: limit", share["limit"], limit)
        s.check(f"{process.name}: charged = its block + {human(context)} for its context", share["charged"], block + context)
        s.check(f"{process.name}: resident at the driver = charged", share["resident"], share["charged"])
    s.check("free = total - reserve - 6Gi - 4Gi", s.gpu()["free"], card["free"] - A_LIMIT - B_LIMIT)
    return a, b


def an_outsider(s, card):
    s.scene("A program outside kube-vram", "It takes 2Gi by itself. Nobody granted that: it is measured, shown as foreign, and never given away twice.")
    outside = s.start_outside("hold", "2Gi")
    gpu = s.until("the foreign memory is seen", lambda: s.gpu() if s.gpu()["foreign"] >= OUTSIDE else None)
    s.show("gpus")
    taken = OUTSIDE + s.context_bytes()
    s.check("foreign = 2Gi + the context of that program", gpu["foreign"], taken)
    s.check("its pid is named", [p["pid"] for p in gpu["foreign_processes"]], [outside.pid])
    s.check("free for new budgets", gpu["free"], card["free"] - A_LIMIT - B_LIMIT - taken)


def refused_before_it_starts(s):
    s.scene("C asks for too much", "16Gi are not free. C is told before it starts, with what is free and who has the rest.")
    free = s.gpu()["free"]
    done = s.run("run", "--memory", "16Gi", "--", s.program("alloc"), "15Gi")
    s.check("C did not start", "context" in done.stdout, False)
    s.check("exit status: try again later", done.returncode, 75)
    said = done.stderr
    s.check("the message has the code", "VRAM-2001" in said, True)
    s.check(f"and says what is free ({human(free)})", human(free) in said, True)
    for holder in ("budget 1", "budget 2", f"pid {s.outside.pid}"):
        s.check(f"and names {holder}", holder in said, True)


def stopped_at_its_limit(s):
    s.scene("D allocates until it is refused", "D asks for 6Gi and takes blocks of 1Mi. It gets its limit less the context reserve, to the byte, and "
            "an ordinary CUDA_ERROR_OUT_OF_MEMORY after that.")
    d = s.start("D", "run", "--memory", "6Gi", "--", s.program("alloc"), "--until-refused", "--chunk", "1Mi", "--hold")
    granted = s.holding(d)
    s.show("top", "--once")
    context = s.context_bytes()
    share = s.share(d)
    s.note(f"granted {granted} bytes = 6Gi - {human(context)} context reserve")
    s.check("D: granted bytes = limit - context reserve", granted, D_LIMIT - context)
    s.check("D: charged = limit", share["charged"], D_LIMIT)
    s.check("D: resident at the driver = limit", share["resident"], D_LIMIT)
    return d, granted


def nobody_noticed(s, a, b):
    s.scene("A and B never noticed", "")
    for process, block in ((a, A_BLOCK), (b, B_BLOCK)):
        s.check(f"{process.name} runs", process.alive(), True)
        s.check(f"{process.name}: refusals", s.budget(process)["refused"], 0)
        s.check(f"{process.name}: charged, unchanged", s.share(process)["charged"], block + s.context_bytes())


def killed(s, a):
    s.scene("kill -9 of A", "No destructor runs. The kernel says that A is dead, the driver no longer lists it, its bytes are free again.")
    before = s.gpu()["free"]
    start = time.monotonic()
    a.kill()
    after = s.until("A's bytes are back", lambda: s.gpu()["free"] if s.gpu()["free"] > before else None)
    s.note(f"seen free after {1000 * (time.monotonic() - start):.0f} ms")
    s.show("ps")
    s.check("free = before + 6Gi", after, before + A_LIMIT)
    s.check("budgets that are left", [b["budget"] for b in s.json("ps")["budgets"]], [2, 3])


def post_mortem(s, d, granted):
    s.scene("Why D was refused", "Each refusal leaves a post-mortem.")
    s.show("oom", "last")
    oom = s.json("oom", "last")["oom"]
    s.check("budget", oom["budget"], s.budget(d)["budget"])
    s.check("process", oom["pid"], d.pid)
    s.check("asked", oom["asked"], MIB)
    s.check("by the call", oom["call"], "cuMemAlloc_v2")
    s.check("limit", oom["limit"], D_LIMIT)
    s.check("held by D at that moment", oom["charged"], granted + s.context_bytes())
    s.check("what would have fitted", oom["would_fit"], 0)


def nothing_left(s, card, others):
    s.scene("The end", "B, D and the outsider end too.")
    for process in others:
        process.end()
    gpu = s.until("all bytes are back", lambda: s.gpu() if s.gpu()["free"] == card["free"] else None)
    s.check("free, as at the beginning", gpu["free"], card["free"])
    s.check("budgets", len(s.json("ps")["budgets"]), 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--prefix", required=True, help="build folder or installation with bin/vram")
    parser.add_argument("--keep-going", action="store_true", help="check the rest when a figure is off")
    args = parser.parse_args()
    start = time.monotonic()
    with Stage(args.prefix, CARD, args.keep_going) as s:
        card = the_card(s)
        a, b = two_programs(s, card)
        an_outsider(s, card)
        refused_before_it_starts(s)
        d, granted = stopped_at_its_limit(s)
        nobody_noticed(s, a, b)
        killed(s, a)
        post_mortem(s, d, granted)
        nothing_left(s, card, (b, d, s.outside))
        s.closing(time.monotonic() - start)
    sys.exit(1 if s.failed else 0)


if __name__ == "__main__":
    main()
