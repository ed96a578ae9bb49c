"""Packets of the node ledger's socket (src/lease/wire.h), for tests that speak it themselves."""
import json
import socket
import struct

MAGIC, VERSION = 0x4D525643, 1
HELLO, WELCOME, REFUSE, REFILL, REFILL_REPLY, OVERCOME, PHYSICAL_OOM, RELEASE_SHARED, CONTROL, CONTROL_REPLY = 1, 2, 3, 4, 5, 6, 7, 8, 16, 17
MORE = 1
HEADER = struct.Struct("<IHHIHHQ")
HELLO_BODY = struct.Struct("<IIIIQII16Q")       # abi, replay, slot, observer, budget, unknown symbols, driver version, granted units
WELCOME_BODY = struct.Struct("<QIIII")          # budget, slot, gpus, simulated, reserved
REFUSE_BODY = struct.Struct("<I508s")           # code, sentence
REFILL_BODY = struct.Struct("<IIQQ48s")         # gpu, reserved, need units, asked bytes, call
REFILL_REPLY_BODY = struct.Struct("<IIQQ")      # status, reserved, oom, granted units
RELEASE_BODY = struct.Struct("<IIQ")            # gpu, reserved, units
UNIT = 512
GRANTED, REFUSED, INVALID = 0, 1, 2


class Gone(Exception):
    """The daemon is not there, or ended the connection."""


def packet(kind, body=b"", seq=1, flags=0, magic=MAGIC, version=VERSION, length=None):
    return HEADER.pack(magic, version, kind, HEADER.size + len(body) if length is None else length, flags, 0, seq) + body


def connect(path, timeout=10):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(timeout)
    try:
        s.connect(path)
    except OSError as e:
        s.close()
        raise Gone(str(e)) from e
    return s


class Control:
    """One connection for JSON requests."""

    def __init__(self, path, timeout=10):
        self.socket = connect(path, timeout)
        self.seq = 0

    def close(self):
        self.socket.close()

    def send(self, **request):
        self.seq += 1
        try:
            self.socket.send(packet(CONTROL, json.dumps(request).encode(), self.seq))
        except OSError as e:
            raise Gone(str(e)) from e

    def next(self):
        text = b""
        while True:
            try:
                data = self.socket.recv(1 << 16)
            except OSError as e:
                raise Gone(str(e)) from e
            if len(data) < HEADER.size:
                raise Gone("the connection ended")
            _, _, kind, _, flags, _, seq = HEADER.unpack_from(data)
            if kind != CONTROL_REPLY or seq != self.seq:
                continue
            text += data[HEADER.size:]
            if not flags & MORE:
                return json.loads(text)

    def ask(self, **request):
        self.send(**request)
        return self.next()
