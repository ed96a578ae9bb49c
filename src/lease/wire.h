// Messages between the guard (or the command line) and the node ledger over AF_UNIX SOCK_SEQPACKET; little-endian,
// fixed layout, one message a packet. A receiver checks magic, version, type and exact length before it reads further;
// anything else ends that connection and nothing else.
#pragma once
#include <stdint.h>

#include "lease/table.h"

namespace kvram::lease {

constexpr uint32_t kWireMagic = 0x4d525643;
constexpr uint16_t kWireVersion = 1;
constexpr uint32_t kMaxMessage = 32 * 1024;  // bytes of a packet, header included
constexpr uint32_t kMaxCallName = 48;

enum class MessageType : uint16_t {
  kHello = 1,          // guard: Hello (+ the lease memfd when it replays)
  kWelcome = 2,        // node: Welcome (+ lease memfd, grant page)
  kRefuse = 3,         // node: Refuse, then it closes
  kRefill = 4,         // guard: Refill
  kRefillReply = 5,    // node: RefillReply
  kOvercome = 6,       // guard: Overcome, no reply
  kPhysicalOom = 7,    // guard: PhysicalOom, no reply: the driver refused although the ledger had room
  kReleaseShared = 8,  // guard: ReleaseShared: memory that another process may keep alive; reply is RefillReply
  kControl = 16,       // command line: JSON request (the rest of the packet)
  kControlReply = 17,  // node: JSON, in chunks; header.flags kMore while more follows
};
constexpr uint16_t kFlagMore = 1;

struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t type;
  uint32_t length;  // whole packet
  uint16_t flags;
  uint16_t reserved;
  uint64_t seq;  // echoed in the reply
};

struct Hello {
  Header header;
  uint32_t abi;
  uint32_t replay;  // 1: `slot` and the memfd are from an earlier daemon; 0: a new process
  uint32_t slot;
  uint32_t observer;         // 1: reads reports only, takes no slot (NVML alone)
  uint64_t budget_id;        // only with replay, and only believed when the kernel's facts agree
  uint32_t unknown_symbols;  // names the driver exports that the guard's table lacks
  uint32_t driver_version;   // cuDriverGetVersion, 0 if unknown
  uint64_t
      granted_units[kMaxGpus];  // with replay: what this process was granted; used where the daemon's record is lost
};

struct Welcome {
  Header header;
  uint64_t budget_id;
  uint32_t slot;
  uint32_t gpus;
  uint32_t simulated;
  uint32_t reserved;
};

struct Refuse {
  Header header;
  uint32_t code;       // ErrorCode
  char sentence[508];  // NUL-terminated
};

struct Refill {
  Header header;
  uint32_t gpu;
  uint32_t reserved;
  uint64_t need_units;      // make at least this available in one word
  uint64_t asked_bytes;     // what the program asked for
  char call[kMaxCallName];  // the driver call, for the post-mortem; NUL-terminated
};

enum class RefillStatus : uint32_t { kGranted = 0, kRefused = 1, kInvalid = 2 };
struct RefillReply {
  Header header;
  uint32_t status;  // RefillStatus
  uint32_t reserved;
  uint64_t oom_id;         // of the post-mortem, when refused
  uint64_t granted_units;  // the process's grant on this GPU, after
};

struct Overcome {
  Header header;
  uint64_t oom_id;
};

struct PhysicalOom {
  Header header;
  uint32_t gpu;
  uint32_t reserved;
  uint64_t asked_bytes;
  char call[kMaxCallName];
};

struct ReleaseShared {
  Header header;
  uint32_t gpu;
  uint32_t reserved;
  uint64_t units;
};

static_assert(sizeof(Header) == 24 && sizeof(Hello) == 56 + 8 * kMaxGpus && sizeof(Welcome) == 48 &&
              sizeof(Refuse) == 536);
static_assert(sizeof(Refill) == 96 && sizeof(RefillReply) == 48 && sizeof(Overcome) == 32 &&
              sizeof(PhysicalOom) == 88 && sizeof(ReleaseShared) == 40);

}  // namespace kvram::lease
