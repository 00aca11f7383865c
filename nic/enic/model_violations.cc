// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/model_violations.h"

#include "absl/strings/str_cat.h"

namespace dmakit::nic::enic {
namespace {

const char* Name(Block block) {
  switch (block) {
    case Block::kBar:
      return "bar 0";
    case Block::kDevcmd:
      return "devcmd";
    case Block::kWq:
      return "wq";
    case Block::kRq:
      return "rq";
    case Block::kCq:
      return "cq";
    case Block::kIntr:
      return "intr";
  }
  return "?";
}

const char* Text(Rule rule) {
  switch (rule) {
    case Rule::kPostedOutOfRange:
      return "posted_index must be below ring_size";
    case Rule::kPostedBeforeEnable:
      return "posted_index written before enable";
    case Rule::kPostedFull:
      return "posted_index overtakes fetch_index: one slot stays unused";
    case Rule::kWriteWhileEnabled:
      return "only posted_index and enable may be written while the queue is enabled; offset";
    case Rule::kReadOnly:
      return "read-only register written; offset";
    case Rule::kNoSuchRegister:
      return "no register there; offset";
    case Rule::kAccessWidth:
      return "access of another width than the register's; offset";
    case Rule::kEnableWhileStopping:
      return "enabled again before running was 0";
    case Rule::kDisabledOnce:
      return "enabled again after fewer than two disables: stale descriptors may be cached";
    case Rule::kCqInUse:
      return "completion queue register written while a queue completes into it; offset";
    case Rule::kRingBase:
      return "ring_base must be a multiple of 512";
    case Rule::kRingSize:
      return "ring_size must be a multiple of 32 between 64 and 4096";
    case Rule::kFetchIndex:
      return "fetch_index must be below ring_size";
    case Rule::kCqIndex:
      return "cq_index names no completion queue";
    case Rule::kCqSetup:
      return "completion queue needs color and entries enabled, messages and flow control off; "
             "bits";
    case Rule::kCqOverflow:
      return "completion queue overflows: its driver may not have seen as many entries as it holds";
    case Rule::kReservedBits:
      return "reserved descriptor bits set";
    case Rule::kRqType:
      return "reserved receive descriptor type";
    case Rule::kCqEntryWithoutEop:
      return "CQ_ENTRY on a descriptor without EOP; slot";
    case Rule::kTooManyDescriptors:
      return "packet of more descriptors than the limit";
    case Rule::kFrameTooLong:
      return "frame longer than the limit";
    case Rule::kOffloadMode:
      return "reserved offload mode";
    case Rule::kOffloadHeaders:
      return "offload asked for does not fit the packet's headers; mss, lengths, mode";
    case Rule::kChecksumPreload:
      return "a checksum field does not hold what the offload mode wants preloaded; mss, lengths, "
             "mode";
    case Rule::kUnsupportedOffload:
      return "offload this model does not do was asked for; flags word";
    case Rule::kCreditsReturned:
      return "more interrupt credits returned than there were events";
    case Rule::kInterruptOffset:
      return "completion queue's interrupt_offset names no interrupt";
    case Rule::kDevcmdBusy:
      return "written while a command is running; offset";
    case Rule::kDevcmdState:
      return "command not allowed in this state";
    case Rule::kDevcmdUnknown:
      return "command unknown";
    case Rule::kDevcmdArgument:
      return "command argument out of range";
  }
  return "?";
}

}  // namespace

void ViolationLog::Record(Rule rule, Place place, uint64_t value, uint64_t limit) {
  const uint64_t slot = count_.fetch_add(1, std::memory_order_acq_rel);
  if (slot >= kKept) return;
  Entry& entry = entries_[slot];
  entry.rule = rule;
  entry.place = place;
  entry.value = value;
  entry.limit = limit;
  entry.complete.store(true, std::memory_order_release);
}

std::vector<std::string> ViolationLog::Words() const {
  std::vector<std::string> words;
  for (const Entry& entry : entries_) {
    if (!entry.complete.load(std::memory_order_acquire)) continue;
    std::string line = Name(entry.place.block);
    if (entry.place.block > Block::kDevcmd) absl::StrAppend(&line, " ", entry.place.index);
    absl::StrAppend(&line, ": ", Text(entry.rule), ": ", entry.value);
    if (entry.limit != 0) absl::StrAppend(&line, " (limit ", entry.limit, ")");
    words.push_back(std::move(line));
  }
  return words;
}

}  // namespace dmakit::nic::enic
