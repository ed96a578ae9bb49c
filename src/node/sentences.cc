#include "node/sentences.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvram::node {
namespace {

constexpr size_t kMostHolders = 8;

std::string gpus_text(int count) { return count == 1 ? "one GPU" : fmt::format("{} GPUs", count); }
// Rounded down, so that what a sentence offers can be had.
std::string offer_text(Bytes bytes) { return format_quantity(round_down(bytes, kMiB)); }

Error bad_request(const model::Request& request) {
  if (request.cards != 0 && request.memory != Bytes(0)) {
    return {ErrorCode::kCardBesideMemory,
            "--card takes whole GPUs and --memory an amount; only one of them can be meant. Leave one out."};
  }
  int count = request.cards != 0 ? request.cards : request.gpus;
  if (count < 1 || count > 16) {
    return {ErrorCode::kBadGpuCount, fmt::format("{} is not a count of GPUs: it has to be from 1 to 16.", count)};
  }
  return {ErrorCode::kBadUsage,
          "Neither an amount of memory nor whole cards were asked for. Give --memory 6Gi, for example, or --card 1."};
}

// What was found, without what to do about it.
std::string room_text(const model::Request& request, const placement::Refusal& refusal,
                      const std::vector<GpuHolders>& gpus) {
  std::string held;
  for (const GpuHolders& gpu : gpus) {
    if (gpu.holders.empty()) continue;
    if (!held.empty()) held += "; ";
    if (gpus.size() > 1) held += fmt::format("GPU {}: ", gpu.index);
    held += holders_text(gpu.holders, kMostHolders);
  }
  if (!held.empty()) held = " Held: " + held + ".";
  std::string fitting = refusal.fitting_gpus == 0 ? "none" : std::to_string(refusal.fitting_gpus);
  bool many = refusal.fitting_gpus > 1;
  std::string found;
  if (request.cards > 0) {
    found = fmt::format("{} of the GPUs {} without any other budget or program", fitting, many ? "are" : "is");
  } else if (refusal.asked_gpus == 1) {
    found =
        fmt::format("the largest free part is {} (GPU {})", format_human(refusal.largest_free), refusal.largest_index);
  } else {
    found = fmt::format("{} of the GPUs {} that much free; the largest free part is {} (GPU {})", fitting,
                        many ? "have" : "has", format_human(refusal.largest_free), refusal.largest_index);
  }
  return fmt::format("{} asked, but {}.{}", asked_text(request), found, held);
}

Error no_room(const model::Request& request, const placement::Refusal& refusal, const std::vector<GpuHolders>& gpus) {
  std::string offer = "Add --wait 10m to wait for room.";
  if (request.cards == 0 && refusal.largest_free >= kMiB && refusal.asked_gpus == 1) {
    offer = fmt::format("Ask for at most {}, or add --wait 10m to wait for room.", offer_text(refusal.largest_free));
  }
  return {ErrorCode::kNoRoom, fmt::format("{} {}", room_text(request, refusal, gpus), offer)};
}

}  // namespace

std::string asked_text(const model::Request& request) {
  if (request.cards > 0)
    return request.cards == 1 ? "A whole card was" : fmt::format("{} whole cards were", request.cards);
  if (request.gpus <= 1) return fmt::format("{} on one GPU was", format_human(request.memory));
  return fmt::format("{} over {} GPUs ({} on each) was", format_human(request.memory), request.gpus,
                     format_human(model::part_of(request)));
}

std::string clean_text(std::string_view text, size_t most) {
  std::string clean;
  for (size_t i = 0; i < text.size();) {
    auto lead = static_cast<unsigned char>(text[i]);
    size_t length = lead < 0x80                   ? 1
                    : lead >= 0xc2 && lead < 0xe0 ? 2
                    : lead >= 0xe0 && lead < 0xf0 ? 3
                    : lead >= 0xf0 && lead < 0xf5 ? 4
                                                  : 0;
    bool valid = length > 0 && i + length <= text.size();
    for (size_t k = 1; valid && k < length; ++k) valid = (static_cast<unsigned char>(text[i + k]) & 0xc0) == 0x80;
    if (valid && length >= 3) {  // overlong forms, surrogates and beyond the last code point
      auto second = static_cast<unsigned char>(text[i + 1]);
      valid = !(lead == 0xe0 && second < 0xa0) && !(lead == 0xed && second >= 0xa0) &&
              !(lead == 0xf0 && second < 0x90) && !(lead == 0xf4 && second >= 0x90);
    }
    std::string_view part = valid ? text.substr(i, length) : "?";
    if (valid && (lead < 0x20 || lead == 0x7f)) part = " ";
    if (clean.size() + part.size() > most) break;
    clean += part;
    i += valid ? length : 1;
  }
  return clean;
}

std::string waiting_reason(const model::Request& request, const placement::Refusal& refusal,
                           const std::vector<GpuHolders>& holders, size_t ahead) {
  if (refusal.why == placement::Why::kWaitsAhead) {
    return fmt::format("{} earlier request{} for the same room", ahead, ahead == 1 ? " waits" : "s wait");
  }
  return room_text(request, refusal, holders);
}

std::string holders_text(const std::vector<Holder>& holders, size_t most) {
  std::string text;
  for (size_t i = 0; i < holders.size() && i < most; ++i) {
    const Holder& h = holders[i];
    if (!text.empty()) text += ", ";
    if (h.budget != 0 && h.who.empty()) {
      text += fmt::format("another user's budget {} {}", h.budget, format_human(h.bytes));
    } else if (h.budget != 0) {
      text += fmt::format("budget {} ({}) {}", h.budget, h.who, format_human(h.bytes));
    } else if (h.pid != 0) {
      text += fmt::format("foreign {} (pid {} {})", format_human(h.bytes), h.pid, h.who);
    } else {
      text += fmt::format("foreign {} (no process listed)", format_human(h.bytes));
    }
  }
  if (holders.size() > most) {
    Bytes rest;
    for (size_t i = most; i < holders.size(); ++i) rest += holders[i].bytes;
    text += fmt::format(" and {} more with {}", holders.size() - most, format_human(rest));
  }
  return text;
}

Error refusal_error(const model::Request& request, const placement::Refusal& refusal,
                    const std::vector<GpuHolders>& holders, size_t waiting) {
  switch (refusal.why) {
    case placement::Why::kBadRequest:
      return bad_request(request);
    case placement::Why::kTooManyGpus:
      return {ErrorCode::kTooManyGpus,
              fmt::format("{} asked, but this machine has {} in all, the broken ones included. Ask for fewer GPUs; "
                          "`vram gpus` lists them.",
                          asked_text(request), gpus_text(static_cast<int>(holders.size())))};
    case placement::Why::kTooLarge: {
      Bytes most;
      for (const GpuHolders& gpu : holders) {
        Bytes all = gpu.free;
        for (const Holder& h : gpu.holders) all += h.bytes;
        most = std::max(most, all);
      }
      return {
          ErrorCode::kMoreThanAnyGpu,
          fmt::format("{} asked, but {} here {} that much: the largest GPU has {} beside the driver's reserve. Waiting "
                      "cannot help; ask for at most {} on each GPU, or spread it with --gpu.",
                      asked_text(request), refusal.asked_gpus == 1 ? "no GPU" : "not that many GPUs",
                      refusal.asked_gpus == 1 ? "has" : "have", format_human(most), offer_text(most))};
    }
    case placement::Why::kWaitsAhead:
      return {
          ErrorCode::kWaitsAhead,
          fmt::format("{} asked, and {} could take it now, but {} earlier request{} for room there. Add --wait 10m to "
                      "join the queue.",
                      asked_text(request), gpus_text(std::max(1, refusal.fitting_gpus)), waiting,
                      waiting == 1 ? " waits" : "s wait")};
    case placement::Why::kNoRoom:
      break;
  }
  return no_room(request, refusal, holders);
}

}  // namespace kvram::node
