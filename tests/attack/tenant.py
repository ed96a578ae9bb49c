"""What a hostile program does inside its own budget: run by attack.py under `vram run`. tenant.py CASE [WORDS...]

Each case prints what it got as JSON on one line; whether that was too much is judged from outside.
"""
import array
import ctypes
import fcntl
import json
import mmap
import os
import socket
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "harness"))
import wire  # noqa: E402  pylint: disable=wrong-import-position

SOCKET = os.environ.get("KV_TEST_SOCKET", "")
TABLE_MIN = 8192  # bytes; the grant page is shorter


class Ledger:
    """A client of the node ledger with no manners."""

    def __init__(self, **hello):
        self.socket = wire.connect(SOCKET)
        self.seq = 0
        self.reply = self.hello(**hello)

    def send(self, kind, body, fds=()):
        self.seq += 1
        data = wire.packet(kind, body, self.seq)
        if fds:
            self.socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        else:
            self.socket.send(data)

    def receive(self):
        """(type, body, descriptors); type 0 when the daemon ended the connection."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 65536, 4)
        except OSError:
            return 0, b"", []
        if len(data) < wire.HEADER.size:
            return 0, b"", []
        return wire.HEADER.unpack_from(data)[2], data[wire.HEADER.size:], fds

    def hello(self, replay=0, slot=0, budget=0, granted=0, fds=()):
        self.send(wire.HELLO, wire.HELLO_BODY.pack(1, replay, slot, 0, budget, 0, 13050, *([granted] * 16)), fds)
        kind, body, got = self.receive()
        self.fds = got
        if kind == wire.WELCOME:
            self.budget, self.slot, self.gpus, _, _ = wire.WELCOME_BODY.unpack_from(body)
        return kind

    def exchange(self, kind, body):
        """The reply's status and the grant, or None when the daemon ended the connection."""
        try:
            self.send(kind, body)
        except OSError:
            return None
        answer, body, _ = self.receive()
        if answer != wire.REFILL_REPLY:
            return None
        status, _, _, granted = wire.REFILL_REPLY_BODY.unpack_from(body)
        return status, granted

    def refill(self, units, gpu=0, asked=None):
        return self.exchange(wire.REFILL, wire.REFILL_BODY.pack(gpu, 0, units, units * 512 % (1 << 64) if asked is None else asked, b"cuMemAlloc_v2"))

    def release(self, units, gpu=0):
        return self.exchange(wire.RELEASE_SHARED, wire.RELEASE_BODY.pack(gpu, 0, units))

    def lease_fd(self):
        return next(fd for fd in self.fds if os.fstat(fd).st_size >= TABLE_MIN)

    def page_fd(self):
        return next(fd for fd in self.fds if os.fstat(fd).st_size < TABLE_MIN)


def refills(_):
    """Impossible amounts and GPUs, many times."""
    out = {}
    for name, units, gpu in (("limit", 1 << 23, 0), ("2^39", 1 << 39, 0), ("2^40-1", (1 << 40) - 1, 0), ("2^63", 1 << 63, 0), ("all ones", (1 << 64) - 1, 0),
                             ("gpu 1", 1, 1), ("gpu 15", 1, 15), ("gpu 2^32-1", 1, (1 << 32) - 1)):
        ledger = Ledger()
        out[name] = ledger.refill(units, gpu)
        ledger.socket.close()
    return out


def releases(_):
    """Gives back what it never had, hoping for more room."""
    ledger = Ledger()
    out = {"mine": ledger.refill(2048)}
    for name, units in (("more than held", 1 << 30), ("2^40-1", (1 << 40) - 1), ("2^63", 1 << 63), ("all ones", (1 << 64) - 1)):
        for _ in range(3):
            out[name] = ledger.release(units)
            if out[name] is None:
                ledger = Ledger()
    out["after"] = ledger.refill(1 << 23)
    return out


def replays(words):
    """Claims to be somebody that it is not: other slots, other budgets, a forged table, with huge grants."""
    other = int(words[0])
    out = {}
    forged = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
    os.ftruncate(forged, 8 * 8 * 1024)
    first = Ledger()
    own_table = os.dup(first.lease_fd())
    cases = {"other budget, forged table": dict(budget=other, fds=[forged]), "other budget, no table": dict(budget=other),
             "other budget, own table": dict(budget=other, fds=[own_table]), "own budget, forged table": dict(budget=first.budget, fds=[forged]),
             "own budget, no table": dict(budget=first.budget), "own budget, a pipe": dict(budget=first.budget, fds=[os.pipe()[0]]),
             "budget 2^64-1": dict(budget=(1 << 64) - 1, fds=[own_table])}
    for slot in (0, 1, 5, 1023, (1 << 32) - 1):
        cases[f"own budget, slot {slot}"] = dict(budget=first.budget, slot=slot, fds=[own_table])
    for name, how in cases.items():
        how = {"slot": 0, **how}
        ledger = Ledger(replay=1, granted=(1 << 40) - 1, **how)
        out[name] = {"reply": ledger.reply, "budget": getattr(ledger, "budget", None), "refill": ledger.refill(1 << 23) if ledger.reply == wire.WELCOME else None}
        ledger.socket.close()
    return out


def connects(_):
    """Many places in the ledger for one process, each asking for all."""
    ledgers = []
    out = []
    for _ in range(20):
        ledger = Ledger()
        ledgers.append(ledger)
        if ledger.reply != wire.WELCOME:
            out.append(None)
            continue
        out.append(ledger.refill(1 << 20))
    second = ledgers[-1].hello() if ledgers[-1].reply == wire.WELCOME else 0
    return {"grants": out, "second hello": second}


def pages(_):
    """Writes what only the daemon may write; as a user that the daemon's files do not belong to (root may write every file)."""
    ledger = Ledger()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    page, table = ledger.page_fd(), ledger.lease_fd()
    out = {}

    def attempt(name, what):
        try:
            what()
            out[name] = "done"
        except (OSError, ValueError) as e:
            out[name] = type(e).__name__

    def write_page(fd):
        with mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as m:
            m[:8] = b"\xff" * 8

    def write_reopened():
        fd = os.open(f"/proc/self/fd/{page}", os.O_RDWR)
        try:
            write_page(fd)
        finally:
            os.close(fd)

    def make_writable():
        libc = ctypes.CDLL(None, use_errno=True)
        with mmap.mmap(page, 4096, mmap.MAP_SHARED, mmap.PROT_READ):
            for line in Path("/proc/self/maps").read_text().splitlines():
                span, mode, _, _, inode, *_ = line.split()
                if inode == str(os.fstat(page).st_ino) and mode.startswith("r--"):
                    start = int(span.split("-")[0], 16)
                    if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(4096), 3) == 0:
                        return
        raise OSError("refused")

    attempt("map the page", lambda: write_page(page))
    attempt("write to the page", lambda: os.pwrite(page, b"\xff" * 64, 0))
    attempt("reopen the page", write_reopened)
    attempt("mprotect the page", make_writable)
    attempt("shrink the page", lambda: os.ftruncate(page, 0))
    attempt("shrink the table", lambda: os.ftruncate(table, 0))
    attempt("grow the table", lambda: os.ftruncate(table, 1 << 30))
    attempt("punch the page", lambda: fallocate_punch(page))
    attempt("seal the table against the daemon", lambda: fcntl.fcntl(table, 1033, 0x0008))  # F_ADD_SEALS, F_SEAL_WRITE
    return out


def fallocate_punch(fd):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(4096)) != 0:  # KEEP_SIZE | PUNCH_HOLE
        raise OSError(ctypes.get_errno(), "fallocate")


def words(_):
    """Writes huge amounts into all words of its budget's table, then asks the ledger for more."""
    ledger = Ledger()
    ledger.refill(2048)
    with mmap.mmap(ledger.lease_fd(), os.fstat(ledger.lease_fd()).st_size) as table:
        for at in range(0, len(table), 8):
            struct.pack_into("<Q", table, at, (1 << 40) - 1)
        return {"refills": [ledger.refill(units) for units in (1, 1 << 22, 1 << 39)], "release": ledger.release(1 << 39)}


def lend(_):
    """A forked child speaks over its parent's connection, as the parent."""
    ledger = Ledger()
    out = {"parent": ledger.refill(2048)}
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, json.dumps(ledger.refill(1 << 20)).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    out["child"] = json.loads(os.read(read, 4096) or b"null")
    return out


def overdraw(words_):
    """Through the guard: takes all, then writes its own lease word and takes twice the budget again."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, block = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_ulonglong()
    for status in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
                   cuda.cuCtxSetCurrent(context)):
        if status:
            return {"status": status}
    mine = 0
    while cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(64 << 20)) == 0:
        mine += 64 << 20
    for line in Path("/proc/self/maps").read_text().splitlines():
        parts = line.split()
        if len(parts) > 5 and "memfd" in parts[5] and parts[1].startswith("rw-s"):
            start, end = (int(x, 16) for x in parts[0].split("-"))
            for at in range(start, end, 64):
                ctypes.c_ulonglong.from_address(at).value = 1 << 38
    taken = 0
    while taken < int(words_[0]) and cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(64 << 20)) == 0:
        taken += 64 << 20
    print(json.dumps({"mine": mine, "beyond": taken}), flush=True)
    sys.stdin.read()
    return {}


def main():
    case = globals()[sys.argv[1]]
    print(json.dumps(case(sys.argv[2:])), flush=True)


if __name__ == "__main__":
    main()
