"""The rules of the tree, as data: who may include whom, how long things may be, which words and hosts may stand in it."""
import re

# src/<folder> -> the folders it may include, besides itself. ARCHITECTURE.md draws the same arrows.
_PURE = {"base", "model"}
_OUTER = _PURE | {"ledger", "placement", "admission", "diagnose", "estimate"}
MAY_INCLUDE = {
    "base": set(),
    "model": {"base"},
    "ledger": _PURE,
    "placement": _PURE,
    "admission": _PURE,
    "diagnose": _PURE,
    "estimate": _PURE,
    "http": _OUTER,
    "kube": _OUTER | {"http"},
    "gpu": _OUTER,
    "node": _OUTER | {"gpu", "lease"},
    "cli": _OUTER | {"node", "lease"},
    "lease": set(),
    "guard": {"lease"},
    "simgpu": {"base"},
    "simulate": _OUTER,
}
# Single headers beyond the arrows: what the guard and the simulated driver must work out in the same way.
MAY_ALSO_INCLUDE = {
    "simgpu": {"lease/module_image.h", "lease/cost.h"},
}
# apps/<program> may include every folder but these: they are libraries that a program loads, not parts of one.
NOT_FOR_APPS = {"guard"}

# Decisions only: no IO, no threads, no clock, no chance.
PURE_FOLDERS = {"model", "ledger", "placement", "admission", "diagnose", "estimate"}
IMPURE_HEADERS = re.compile(
    r"^(thread|mutex|shared_mutex|condition_variable|future|semaphore|barrier|latch|stop_token|atomic|chrono|ctime|time\.h|"
    r"random|fstream|iostream|filesystem|cstdio|stdio\.h|unistd\.h|fcntl\.h|pthread\.h|poll\.h|signal\.h|csignal|sys/.*|"
    r"boost/asio.*|spdlog/.*)$")

# Libraries that stay in one folder, so that their weight and their habits do.
CONFINED = [
    (re.compile(r"^(boost/beast|openssl)/"), {"http"}),
    (re.compile(r"^(grpc|grpcpp|google/protobuf)/"), {"node"}),
    (re.compile(r"^nvml\.h$"), {"gpu", "simgpu", "guard"}),
    (re.compile(r"^cuda\.h$"), {"simgpu", "guard"}),
]

# The guard and the lease table are loaded into other people's programs: C headers and the compiler's own, nothing of the C++ library.
FREESTANDING_FOLDERS = {"lease", "guard"}
CXX_HEADER = re.compile(r"^[a-z_0-9/]+$")  # <vector>, <string>: a header name without .h

MAX_LINES = {".cc": 600, ".c": 600, ".h": 250, ".py": 600}
MAX_FUNCTION_LINES = 70

# Owners are written TODO(name).
TODO = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\([a-z][\w.-]*\))")

# Joined here so that this file passes its own rule.
_WORDS = ["blaz" + "ing", "seam" + "less", "cutting-" + "edge", "world-" + "class", "revolution" + "ary", "game-" + "changer",
          "/wo" + "rk/", "issue " + r"#?\d+", "before-" + "stop"]
FORBIDDEN = re.compile("|".join(rf"(?<![\w]){w}" for w in _WORDS), re.IGNORECASE)

# Hosts that a link may name. Package registries are not among them: tools find those by themselves.
HOSTS = {"github.com", "www.apache.org", "apache.org", "keepachangelog.com", "semver.org", "kubernetes.io", "docs.nvidia.com",
         "developer.nvidia.com", "www.kernel.org", "man7.org", "llvm.org", "clang.llvm.org", "refspecs.linuxfoundation.org",
         "www.w3.org", "en.wikipedia.org", "www.gnu.org", "no-color.org", "example.com", "localhost", "127.0.0.1"}
