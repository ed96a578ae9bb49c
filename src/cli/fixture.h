// One machine as the daemon would list it, for the tests of what is drawn.
#pragma once
#include <boost/json/parse.hpp>
#include <string_view>

#include "cli/json.h"

namespace kvram::cli::fixture {

// A 24 GiB card with a reserve of 512 MiB, a foreign program with 2 GiB, budgets of 6 GiB and 4 GiB, and one that
// waits for 16 GiB.
constexpr std::string_view kList = R"({
  "simulated": true,
  "driver": {"version": "580.65.06", "cuda": 13050},
  "gpus": [{"index": 0, "uuid": "GPU-0001", "name": "NVIDIA A10", "total": 25769803776, "reserved": 536870912,
    "foreign": 2147483648, "assigned": 10737418240, "resident": 3221225472, "free": 12348030976, "health": "ok",
    "foreign_processes": [{"pid": 77, "bytes": 2147483648, "name": "miner\u001b[2J"}]}],
  "budgets": [
    {"budget": 7, "user": "ann", "uid": 1000, "command": "./server --port 80", "created": 1000, "strict": false,
     "mode": "namespace", "guarantee": "cooperative", "why": "", "over": false, "refused": 0, "overcome": 0,
     "gpus": [{"index": 0, "uuid": "GPU-0001", "limit": 6442450944, "charged": 2147483648, "granted": 2214592512,
       "hidden": 0, "resident": 2147483648, "peak": 3221225472}],
     "processes": [{"pid": 4242, "name": "server", "gpus": [{"index": 0, "charged": 1610612736, "resident": 1610612736}]},
       {"pid": 4243, "name": "worker", "gpus": [{"index": 0, "charged": 536870912, "resident": 536870912}]}]},
    {"budget": 8, "user": "bob", "uid": 1001, "command": "", "created": 940, "strict": true,
     "mode": "path", "guarantee": "cooperative", "why": "no SYS_ADMIN", "over": true, "refused": 3, "overcome": 2,
     "gpus": [{"index": 0, "uuid": "GPU-0001", "limit": 4294967296, "charged": 4294967296, "granted": 4294967296,
       "hidden": 104857600, "resident": 4399824896, "peak": 4294967296}], "processes": []}],
  "waiting": [{"pid": 99, "user": "eve", "asked": 17179869184, "since": 970, "position": 1, "command": "./big"}]
})";

constexpr std::string_view kOom =
    R"({"simulated": true, "oom": {"id": 12, "time": 1000, "budget": 7, "command": "./server",
  "pid": 4242, "process": "server", "call": "cuMemAlloc_v2", "asked": 1073741824, "gpu": 0, "limit": 6442450944,
  "charged": 5905580032, "hidden": 0, "free_in_budget": 536870912, "would_fit": 536870912, "kind": "limit",
  "processes": [{"pid": 4242, "name": "server", "charged": 4831838208, "resident": 4831838208},
    {"pid": 4243, "name": "worker", "charged": 1073741824, "resident": 1073741824}],
  "gpu_state": {"total": 25769803776, "reserved": 536870912, "foreign": 2147483648, "free": 12348030976,
    "budgets": [{"budget": 7, "limit": 6442450944, "charged": 5905580032}, {"budget": 8, "limit": 4294967296, "charged": 0}]},
  "sentence": "server (pid 4242) asked for 1Gi by cuMemAlloc_v2, but budget 7 has 512Mi of its 6Gi left; 512Mi would have fitted."}})";

inline json::object parse(std::string_view text) { return json::parse(text).as_object(); }

}  // namespace kvram::cli::fixture
