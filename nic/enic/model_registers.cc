// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/model_registers.h"

#include <algorithm>

#include "nic/endian.h"
#include "nic/enic/descriptors.h"

namespace dmakit::nic::enic {
namespace {

// Where this model puts its blocks; a driver learns it from the resource table.
constexpr uint32_t kDevcmdBase = 0x1000;
constexpr uint32_t kWqBase = 0x2000;
constexpr uint32_t kRqBase = 0x4000;
constexpr uint32_t kCqBase = 0x8000;
constexpr uint32_t kIntrBase = 0xc000;
static_assert(kWqBase + RegisterFile::kMaxQueues * kBlockBytes <= kRqBase);
static_assert(kCqBase + 2 * RegisterFile::kMaxQueues * kBlockBytes <= kIntrBase);
static_assert(kIntrBase + RegisterFile::kMaxQueues * kBlockBytes <= RegisterFile::kBarBytes);

constexpr OnWrite kRo = OnWrite::kReadOnly;
constexpr OnWrite kIdle = OnWrite::kWhileDisabled;
constexpr OnRead kValue = OnRead::kValue;

// Enic sheet 2.2 to 2.5, in its order:      on write               on read        reset
constexpr RegisterRule kRqRules[] = {
    /* ring_base */ {0x00, kIdle, kValue, 0},
    /* ring_size */ {0x08, kIdle, kValue, 0},
    /* posted_index */ {0x10, OnWrite::kPostedIndex, kValue, 0},
    /* cq_index */ {0x18, kIdle, kValue, 0},
    /* enable */ {0x20, OnWrite::kEnable, kValue, 0},
    /* running */ {0x28, kRo, kValue, 0},
    /* fetch_index */ {0x30, kIdle, kValue, 0},
    /* error_interrupt_enable */ {0x38, kIdle, kValue, 0},
    /* error_interrupt_offset */ {0x40, kIdle, kValue, 0},
    /* error_status */ {0x48, kIdle, kValue, 0},
    /* dropped_packet_count */ {0x50, kRo, kValue, 0},
    /* dropped_packet_count_rc */ {0x58, kRo, OnRead::kClear, 0},
};
constexpr RegisterRule kWqRules[] = {
    /* ring_base */ {0x00, kIdle, kValue, 0},
    /* ring_size */ {0x08, kIdle, kValue, 0},
    /* posted_index */ {0x10, OnWrite::kPostedIndex, kValue, 0},
    /* cq_index */ {0x18, kIdle, kValue, 0},
    /* enable */ {0x20, OnWrite::kEnable, kValue, 0},
    /* running */ {0x28, kRo, kValue, 0},
    /* fetch_index */ {0x30, kIdle, kValue, 0},
    /* dca_value */ {0x38, kIdle, kValue, 0},
    /* error_interrupt_enable */ {0x40, kIdle, kValue, 0},
    /* error_interrupt_offset */ {0x48, kIdle, kValue, 0},
    /* error_status */ {0x50, kIdle, kValue, 0},
};
// "While disabled" is, for a completion queue, while no queue completes into it.
constexpr RegisterRule kCqRules[] = {
    /* ring_base */ {0x00, kIdle, kValue, 0},
    /* ring_size */ {0x08, kIdle, kValue, 0},
    /* flow_control_enable */ {0x10, kIdle, kValue, 0},
    /* color_enable */ {0x18, kIdle, kValue, 0},
    /* cq_head */ {0x20, kIdle, kValue, 0},
    /* cq_tail */ {0x28, kIdle, kValue, 0},
    /* cq_tail_color */ {0x30, kIdle, kValue, 0},
    /* interrupt_enable */ {0x38, kIdle, kValue, 0},
    /* cq_entry_enable */ {0x40, kIdle, kValue, 0},
    /* cq_message_enable */ {0x48, kIdle, kValue, 0},
    /* interrupt_offset */ {0x50, kIdle, kValue, 0},
    /* cq_message_addr */ {0x58, kIdle, kValue, 0},
};
constexpr RegisterRule kIntrRules[] = {
    /* coalescing_timer */ {0x00, OnWrite::kAlways, kValue, 0},
    /* coalescing_value */ {0x08, OnWrite::kAlways, kValue, 0},
    /* coalescing_type */ {0x10, OnWrite::kAlways, kValue, 0},
    /* mask_on_assertion */ {0x18, OnWrite::kAlways, kValue, 0},
    /* mask */ {0x20, OnWrite::kAlways, kValue, 1},
    /* int_credits */ {0x28, kRo, kValue, 0},
    /* int_credit_return */ {0x30, OnWrite::kCreditReturn, kValue, 0},
};

template <size_t N, size_t M>
constexpr bool SameOffsets(const RegisterField (&fields)[N], const RegisterRule (&rules)[M]) {
  if (N != M) return false;
  for (size_t i = 0; i < N; ++i) {
    if (fields[i].offset != rules[i].offset) return false;
  }
  return true;
}
static_assert(SameOffsets(kRqFields, kRqRules) && SameOffsets(kWqFields, kWqRules));
static_assert(SameOffsets(kCqFields, kCqRules) && SameOffsets(kIntrFields, kIntrRules));

// What WritePosted and WriteEnable use is at one place in both kinds of queue.
static_assert(OffsetOf(RqReg::kRingSize) == OffsetOf(WqReg::kRingSize));
static_assert(OffsetOf(RqReg::kPostedIndex) == OffsetOf(WqReg::kPostedIndex));
static_assert(OffsetOf(RqReg::kEnable) == OffsetOf(WqReg::kEnable));
static_assert(OffsetOf(RqReg::kRunning) == OffsetOf(WqReg::kRunning));
static_assert(OffsetOf(RqReg::kFetchIndex) == OffsetOf(WqReg::kFetchIndex));

uint64_t Mask(size_t width) { return width >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * width)) - 1; }

uint64_t LoadPart(uint64_t word, size_t byte, size_t width) {
  return word >> (8 * byte) & Mask(width);
}

// Driver-written registers have one writer at a time, so this need not be one operation.
void StorePart(std::atomic<uint64_t>& word, size_t byte, uint64_t value, size_t width) {
  const uint64_t mask = Mask(width) << (8 * byte);
  const uint64_t old = word.load(std::memory_order_relaxed);
  word.store((old & ~mask) | (value << (8 * byte) & mask), std::memory_order_release);
}

}  // namespace

RegisterFile::RegisterFile(Counts counts, ViolationLog& log)
    : counts_(counts),
      log_(log),
      wqs_(counts.wqs),
      rqs_(counts.rqs),
      cqs_(counts.cqs()),
      intrs_(counts.intrs),
      windows_{Window{Block::kWq, kWqBase, counts.wqs, kWqFields, kWqRules, &wqs_},
               Window{Block::kRq, kRqBase, counts.rqs, kRqFields, kRqRules, &rqs_},
               Window{Block::kCq, kCqBase, counts.cqs(), kCqFields, kCqRules, &cqs_},
               Window{Block::kIntr, kIntrBase, counts.intrs, kIntrFields, kIntrRules, &intrs_}} {
  BuildTable();
  Reset();
}

void RegisterFile::BuildTable() {
  const Resource resources[] = {
      {ResourceType::kWq, 0, kWqBase, counts_.wqs},
      {ResourceType::kRq, 0, kRqBase, counts_.rqs},
      {ResourceType::kCq, 0, kCqBase, counts_.cqs()},
      {ResourceType::kIntrCtrl, 0, kIntrBase, counts_.intrs},
      {ResourceType::kDevcmd, 0, kDevcmdBase, 1},
      {ResourceType::kEnd, 0, 0, 0},
  };
  table_.resize(kResourceHeaderBytes + std::size(resources) * kResourceEntryBytes);
  StoreLe<uint32_t>(table_, 0, kResourceMagic);
  StoreLe<uint32_t>(table_, 4, kResourceVersion);
  size_t at = kResourceHeaderBytes;
  for (const Resource& resource : resources) {
    for (const uint32_t word : Encode(resource)) {
      StoreLe<uint32_t>(table_, at, word);
      at += 4;
    }
  }
}

void RegisterFile::Reset() {
  for (const Window& window : windows_) ResetWindow(window);
}

void RegisterFile::ResetWindow(const Window& window) {
  for (RegisterBlock& block : *window.blocks) {
    for (const RegisterRule& rule : window.rules) {
      block.word(rule.offset).store(rule.reset, std::memory_order_release);
    }
    block.disables.store(0, std::memory_order_relaxed);
    block.was_enabled.store(false, std::memory_order_relaxed);
    block.users.store(0, std::memory_order_release);
    block.timer_reset.store(false, std::memory_order_release);
  }
}

// --- Dispatch ------------------------------------------------------------------------------------

bool RegisterFile::Find(uint64_t offset, size_t width, Hit& hit) {
  for (const Window& window : windows_) {
    if (offset < window.base || offset >= window.base + window.count * kBlockBytes) continue;
    const size_t index = (offset - window.base) / kBlockBytes;
    const size_t in_block = (offset - window.base) % kBlockBytes;
    hit.place = {window.block, static_cast<uint32_t>(index)};
    hit.line = in_block / 8;
    hit.byte = in_block % 8;
    if (hit.line >= window.fields.size()) break;
    const RegisterField& field = window.fields[hit.line];
    if (hit.byte + width > field.width || hit.byte % 4 != 0 || width < 4) {
      log_.Record(Rule::kAccessWidth, hit.place, in_block);
      return false;
    }
    hit.window = &window;
    hit.registers = &(*window.blocks)[index];
    return true;
  }
  log_.Record(Rule::kNoSuchRegister, hit.place, offset);
  return false;
}

uint64_t RegisterFile::MmioRead(uint64_t offset, size_t width) {
  if (offset + width <= table_.size()) {
    uint64_t value = 0;
    for (size_t i = width; i-- > 0;) {
      value = value << 8 | std::to_integer<uint64_t>(table_[offset + i]);
    }
    return value;
  }
  if (offset >= kDevcmdBase && offset + width <= kDevcmdBase + kDevcmdBytes) {
    const uint64_t in_region = offset - kDevcmdBase;
    return Tell({Block::kDevcmd, 0}, in_region, ReadDevcmd(in_region, width), width);
  }
  Hit hit;
  if (!Find(offset, width, hit)) return Mask(width);
  const RegisterRule& rule = hit.window->rules[hit.line];
  std::atomic<uint64_t>& word = hit.registers->word(rule.offset);
  if (rule.read == OnRead::kClear) return word.exchange(0, std::memory_order_acq_rel);
  const uint64_t truth = LoadPart(word.load(std::memory_order_acquire), hit.byte, width);
  return Tell(hit.place, rule.offset, truth, width);
}

uint64_t RegisterFile::Tell(Place place, uint64_t offset, uint64_t truth, size_t width) {
  return lies_ == nullptr ? truth : lies_->Answer(place, offset, truth) & Mask(width);
}

void RegisterFile::MmioWrite(uint64_t offset, uint64_t value, size_t width) {
  value &= Mask(width);
  if (offset >= kDevcmdBase && offset + width <= kDevcmdBase + kDevcmdBytes) {
    return WriteDevcmd(offset - kDevcmdBase, value, width);
  }
  Hit hit;
  if (Find(offset, width, hit)) WriteRegister(hit, value, width);
}

void RegisterFile::WriteRegister(const Hit& hit, uint64_t value, size_t width) {
  const RegisterRule& rule = hit.window->rules[hit.line];
  RegisterBlock& block = *hit.registers;
  switch (rule.write) {
    case OnWrite::kReadOnly:
      return log_.Record(Rule::kReadOnly, hit.place, rule.offset);
    case OnWrite::kEnable:
      return WriteEnable(hit, value);
    case OnWrite::kPostedIndex:
      return WritePosted(hit, value);
    case OnWrite::kCreditReturn:
      return WriteCreditReturn(hit, value);
    case OnWrite::kWhileDisabled:
      if (hit.place.block == Block::kCq) {
        if (block.users.load(std::memory_order_acquire) != 0) {
          return log_.Record(Rule::kCqInUse, hit.place, rule.offset);
        }
      } else if (block.Get(RqReg::kEnable) != 0 || block.Get(RqReg::kRunning) != 0) {
        return log_.Record(Rule::kWriteWhileEnabled, hit.place, rule.offset);
      }
      break;
    case OnWrite::kAlways:
      break;
  }
  StorePart(block.word(rule.offset), hit.byte, value, width);
}

// --- Queue traps ---------------------------------------------------------------------------------

// Enic sheet 3.4: a receive queue is disabled twice before it may run again.
void RegisterFile::WriteEnable(const Hit& hit, uint64_t value) {
  RegisterBlock& block = *hit.registers;
  const bool enabled = block.Get(RqReg::kEnable) != 0;
  if (value == 0) {
    block.disables.fetch_add(1, std::memory_order_relaxed);
  } else if (!enabled) {
    if (block.Get(RqReg::kRunning) != 0) {
      return log_.Record(Rule::kEnableWhileStopping, hit.place, value);
    }
    const uint32_t disables = block.disables.exchange(0, std::memory_order_relaxed);
    if (block.was_enabled.exchange(true, std::memory_order_relaxed) &&
        hit.place.block == Block::kRq && disables < 2) {
      log_.Record(Rule::kDisabledOnce, hit.place, disables, 2);
    }
  }
  block.Set(RqReg::kEnable, value);
}

// Enic sheet 3.1. An index that moves over fetch_index would make a full ring look empty; an index
// out of range is latched, because the device stops the queue for it.
void RegisterFile::WritePosted(const Hit& hit, uint64_t value) {
  RegisterBlock& block = *hit.registers;
  const uint64_t fetch = block.Get(RqReg::kFetchIndex);
  if (block.Get(RqReg::kEnable) == 0) {
    if (value != fetch) return log_.Record(Rule::kPostedBeforeEnable, hit.place, value);
    return block.Set(RqReg::kPostedIndex, value);
  }
  const uint64_t size = RingEntries(block.Get(RqReg::kRingSize));
  const uint64_t old = block.Get(RqReg::kPostedIndex);
  if (value >= size) {
    log_.Record(Rule::kPostedOutOfRange, hit.place, value, size);
  } else if (old < size && fetch < size) {
    const uint64_t held = (old + size - fetch) % size;
    const uint64_t added = (value + size - old) % size;
    if (held + added >= size) log_.Record(Rule::kPostedFull, hit.place, value, fetch);
  }
  block.Set(RqReg::kPostedIndex, value);
}

// Enic sheet 2.5. Credits first: what is unmasked before they are back would assert for them.
void RegisterFile::WriteCreditReturn(const Hit& hit, uint64_t value) {
  RegisterBlock& block = *hit.registers;
  const IntCreditReturn back = DecodeIntCreditReturn(static_cast<uint32_t>(value));
  std::atomic<uint64_t>& credits = block.word(OffsetOf(IntrReg::kIntCredits));
  uint64_t have = credits.load(std::memory_order_acquire);
  if (back.credits > have) {
    log_.Record(Rule::kCreditsReturned, hit.place, back.credits, have);
  }
  // The device adds meanwhile.
  while (!credits.compare_exchange_weak(have, have > back.credits ? have - back.credits : 0,
                                        std::memory_order_acq_rel)) {
  }
  if (back.reset_timer) block.timer_reset.store(true, std::memory_order_release);
  if (back.unmask) block.Set(IntrReg::kMask, 0);
}

// --- devcmd --------------------------------------------------------------------------------------

uint64_t RegisterFile::ReadDevcmd(uint64_t offset, size_t width) {
  if (offset == kDevcmdStatus && width == 4) return status_.load(std::memory_order_acquire);
  if (offset == kDevcmdCmd && width == 4) return command_.load(std::memory_order_acquire);
  if (offset >= kDevcmdArgs && (offset % 8) + width <= 8 && width >= 4) {
    return LoadPart(arg((offset - kDevcmdArgs) / 8), offset % 8, width);
  }
  log_.Record(Rule::kAccessWidth, {Block::kDevcmd, 0}, offset);
  return Mask(width);
}

void RegisterFile::WriteDevcmd(uint64_t offset, uint64_t value, size_t width) {
  const Place place{Block::kDevcmd, 0};
  if (offset == kDevcmdStatus) return log_.Record(Rule::kReadOnly, place, offset);
  if (CommandWaits()) return log_.Record(Rule::kDevcmdBusy, place, offset);
  if (offset == kDevcmdCmd && width == 4) {
    command_.store(static_cast<uint32_t>(value), std::memory_order_release);
    status_.store(kDevcmdBusy, std::memory_order_release);
  } else if (offset >= kDevcmdArgs && (offset % 8) + width <= 8 && width >= 4) {
    StorePart(args_[(offset - kDevcmdArgs) / 8], offset % 8, value, width);
  } else {
    log_.Record(Rule::kAccessWidth, place, offset);
  }
}

}  // namespace dmakit::nic::enic
