// SPDX-License-Identifier: Apache-2.0
//
// What lies in an enic's BAR 0: the resource table and the control blocks of queues and interrupts
// (sections 2.1 to 2.5 of the enic sheet), as tables in the sheet's order. The devcmd region is in
// commands.h, ring entries are in descriptors.h.
//
// Everything is little-endian. No state, no I/O; any thread.
#ifndef DMAKIT_NIC_ENIC_REGISTERS_H_
#define DMAKIT_NIC_ENIC_REGISTERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dmakit::nic::enic {

// --- 2.1 Resource table --------------------------------------------------------------------------

inline constexpr uint32_t kResourceMagic = 0x766E6963;  // in memory: 63 69 6e 76
inline constexpr uint32_t kResourceVersion = 0;
inline constexpr size_t kResourceHeaderBytes = 8;  // magic, version
inline constexpr size_t kResourceEntryBytes = 12;  // the table ends with an entry of type kEnd

enum class ResourceType : uint8_t {
  kEnd = 0,
  kWq = 1,
  kRq = 2,
  kCq = 3,
  kNicCfg = 5,
  kIntrCtrl = 10,
  kIntrTable = 11,
  kIntrPba = 12,
  kIntrPbaLegacy = 13,
  kDevcmd = 16,
  kPassThruPage = 17,
  kSubVnic = 18,
  kMqWq = 19,
  kMqRq = 20,
  kMqCq = 21,
  kDevcmd2 = 24,
};

struct Resource {
  ResourceType type = ResourceType::kEnd;
  uint8_t bar = 0;
  uint32_t bar_offset = 0;
  uint32_t count = 0;
};

// As three 32-bit reads give it.
constexpr std::array<uint32_t, 3> Encode(const Resource& r) {
  return {static_cast<uint32_t>(r.type) | uint32_t{r.bar} << 8, r.bar_offset, r.count};
}
constexpr Resource DecodeResource(const std::array<uint32_t, 3>& words) {
  return {static_cast<ResourceType>(words[0] & 0xff), static_cast<uint8_t>(words[0] >> 8 & 0xff),
          words[1], words[2]};
}

// Instance i of a WQ, RQ, CQ or INTR_CTRL resource is at bar_offset + 128 * i.
inline constexpr size_t kBlockBytes = 128;

// A read from a device that is gone.
inline constexpr uint32_t kAllOnes = 0xffffffff;

// --- 2.2 to 2.5 Control blocks -------------------------------------------------------------------

// Every register has eight bytes to itself; all but the addresses are 32 bits wide. A 64-bit one is
// written in one go or low word first.
struct RegisterField {
  uint16_t offset = 0;
  uint8_t width = 4;
  std::string_view name;
};

enum class RqReg : uint16_t {
  kRingBase = 0x00,
  kRingSize = 0x08,
  kPostedIndex = 0x10,
  kCqIndex = 0x18,
  kEnable = 0x20,
  kRunning = 0x28,
  kFetchIndex = 0x30,
  kErrorInterruptEnable = 0x38,
  kErrorInterruptOffset = 0x40,
  kErrorStatus = 0x48,
  kDroppedPacketCount = 0x50,
  kDroppedPacketCountRc = 0x58,  // cleared by reading
};
inline constexpr RegisterField kRqFields[] = {
    {0x00, 8, "ring_base"},
    {0x08, 4, "ring_size"},
    {0x10, 4, "posted_index"},
    {0x18, 4, "cq_index"},
    {0x20, 4, "enable"},
    {0x28, 4, "running"},
    {0x30, 4, "fetch_index"},
    {0x38, 4, "error_interrupt_enable"},
    {0x40, 4, "error_interrupt_offset"},
    {0x48, 4, "error_status"},
    {0x50, 4, "dropped_packet_count"},
    {0x58, 4, "dropped_packet_count_rc"},
};

// The error registers are not where the RQ has them.
enum class WqReg : uint16_t {
  kRingBase = 0x00,
  kRingSize = 0x08,
  kPostedIndex = 0x10,
  kCqIndex = 0x18,
  kEnable = 0x20,
  kRunning = 0x28,
  kFetchIndex = 0x30,
  kDcaValue = 0x38,
  kErrorInterruptEnable = 0x40,
  kErrorInterruptOffset = 0x48,
  kErrorStatus = 0x50,
};
inline constexpr RegisterField kWqFields[] = {
    {0x00, 8, "ring_base"},
    {0x08, 4, "ring_size"},
    {0x10, 4, "posted_index"},
    {0x18, 4, "cq_index"},
    {0x20, 4, "enable"},
    {0x28, 4, "running"},
    {0x30, 4, "fetch_index"},
    {0x38, 4, "dca_value"},
    {0x40, 4, "error_interrupt_enable"},
    {0x48, 4, "error_interrupt_offset"},
    {0x50, 4, "error_status"},
};

enum class CqReg : uint16_t {
  kRingBase = 0x00,
  kRingSize = 0x08,
  kFlowControlEnable = 0x10,
  kColorEnable = 0x18,
  kHead = 0x20,
  kTail = 0x28,
  kTailColor = 0x30,
  kInterruptEnable = 0x38,
  kEntryEnable = 0x40,
  kMessageEnable = 0x48,
  kInterruptOffset = 0x50,
  kMessageAddr = 0x58,
};
inline constexpr RegisterField kCqFields[] = {
    {0x00, 8, "ring_base"},         {0x08, 4, "ring_size"},        {0x10, 4, "flow_control_enable"},
    {0x18, 4, "color_enable"},      {0x20, 4, "cq_head"},          {0x28, 4, "cq_tail"},
    {0x30, 4, "cq_tail_color"},     {0x38, 4, "interrupt_enable"}, {0x40, 4, "cq_entry_enable"},
    {0x48, 4, "cq_message_enable"}, {0x50, 4, "interrupt_offset"}, {0x58, 8, "cq_message_addr"},
};

enum class IntrReg : uint16_t {
  kCoalescingTimer = 0x00,
  kCoalescingValue = 0x08,
  kCoalescingType = 0x10,  // 0 absolute, 1 quiet
  kMaskOnAssertion = 0x18,
  kMask = 0x20,
  kIntCredits = 0x28,
  kIntCreditReturn = 0x30,
};
inline constexpr RegisterField kIntrFields[] = {
    {0x00, 4, "coalescing_timer"},
    {0x08, 4, "coalescing_value"},
    {0x10, 4, "coalescing_type"},
    {0x18, 4, "mask_on_assertion"},
    {0x20, 4, "mask"},
    {0x28, 4, "int_credits"},
    {0x30, 4, "int_credit_return"},
};

struct IntCreditReturn {
  uint16_t credits = 0;
  bool unmask = false;
  bool reset_timer = false;
};
constexpr uint32_t Encode(const IntCreditReturn& r) {
  return r.credits | uint32_t{r.unmask} << 16 | uint32_t{r.reset_timer} << 17;
}
constexpr IntCreditReturn DecodeIntCreditReturn(uint32_t word) {
  return {static_cast<uint16_t>(word), (word >> 16 & 1) != 0, (word >> 17 & 1) != 0};
}

template <typename Reg>
constexpr size_t OffsetOf(Reg reg) {
  return static_cast<size_t>(reg);
}

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_REGISTERS_H_
