// SPDX-License-Identifier: Apache-2.0
//
// The enic model on a bench: no driver, one block of memory mapped at known addresses, registers
// and rings written by hand. For the tests of the model.
#ifndef DMAKIT_TESTS_NIC_ENIC_MODEL_BENCH_H_
#define DMAKIT_TESTS_NIC_ENIC_MODEL_BENCH_H_

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "nic/enic/commands.h"
#include "nic/enic/model.h"
#include "nic/enic/registers.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::nic::enic {

inline constexpr uint32_t kRing = 64;

// A model with one page of memory at each of a few IOVAs, driven by hand.
struct Bench {
  // Where what lies.
  static constexpr uint64_t kRq = 0x10000, kRqCq = 0x20000, kWq = 0x30000, kWqCq = 0x40000;
  static constexpr uint64_t kData = 0x100000;  // 64 KiB
  static constexpr size_t kSize = 0x200000;

  explicit Bench(const ModelOptions& options = {})
      : memory(new (std::align_val_t{4096}) std::byte[kSize]{}),
        iommu(dma::SoftwareIommu::Create({}).value()),
        model(iommu->NewPort("enic0"), options),
        bar(model.bar0()) {
    const auto view = dma::MemoryView::Of({memory, kSize});
    REQUIRE(iommu
                ->Map({Iova{0x1000}, Bytes{kSize - 0x1000}}, view.Sub(0x1000, kSize - 0x1000),
                      dma::Access::kReadWrite)
                .ok());
    model.Plug(&wire);
  }
  ~Bench() { ::operator delete[](memory, std::align_val_t{4096}); }

  template <typename Reg>
  void Set(ResourceType type, uint32_t i, Reg reg, uint64_t value) {
    const uint64_t at = BlockAt(bar, type, i) + OffsetOf(reg);
    if (OffsetOf(reg) == 0) {
      bar.Write64(at, value);
    } else {
      bar.Write32(at, static_cast<uint32_t>(value));
    }
  }
  template <typename Reg>
  uint64_t Get(ResourceType type, uint32_t i, Reg reg) {
    return bar.Read32(BlockAt(bar, type, i) + OffsetOf(reg));
  }
  template <typename Reg>
  void SetRq(Reg reg, uint64_t value) {
    Set(ResourceType::kRq, 0, reg, value);
  }
  template <typename Reg>
  void SetWq(Reg reg, uint64_t value) {
    Set(ResourceType::kWq, 0, reg, value);
  }

  // Runs a command to its end; its status, and its first result.
  uint32_t Command(Devcmd number, std::vector<uint64_t> args = {}, uint8_t direction = kDirBoth) {
    const uint64_t at = BlockAt(bar, ResourceType::kDevcmd, 0);
    for (size_t i = 0; i < args.size(); ++i) bar.Write64(at + kDevcmdArgs + 8 * i, args[i]);
    bar.Write32(at + kDevcmdCmd,
                Encode(DevcmdWord{static_cast<uint16_t>(number), kVtypeAll, 0, direction}));
    CHECK(bar.Read32(at + kDevcmdStatus) == kDevcmdBusy);
    model.Step();
    result = bar.Read64(at + kDevcmdArgs);
    return bar.Read32(at + kDevcmdStatus);
  }
  void BringUp() {
    CHECK(Command(Devcmd::kOpen) == 0);
    while (Command(Devcmd::kOpenStatus) == 0 && result != 0) {
    }
    CHECK(Command(Devcmd::kInit) == 0);
    CHECK(Command(Devcmd::kPacketFilter, {kFilterPromiscuous}) == 0);
    CHECK(Command(Devcmd::kEnable) == 0);
  }
  void SetUpCq(uint32_t i, uint64_t base, uint32_t size = kRing) {
    Set(ResourceType::kCq, i, CqReg::kRingBase, base);
    Set(ResourceType::kCq, i, CqReg::kRingSize, size);
    Set(ResourceType::kCq, i, CqReg::kColorEnable, 1);
    Set(ResourceType::kCq, i, CqReg::kTailColor, 1);
    Set(ResourceType::kCq, i, CqReg::kEntryEnable, 1);
  }
  void SetUpQueues() {
    SetUpCq(0, kRqCq);
    SetUpCq(1, kWqCq);
    SetRq(RqReg::kRingBase, kRq);
    SetRq(RqReg::kRingSize, kRing);
    SetRq(RqReg::kCqIndex, 0);
    SetWq(WqReg::kRingBase, kWq);
    SetWq(WqReg::kRingSize, kRing);
    SetWq(WqReg::kCqIndex, 1);
  }
  // Everything up to running queues with nothing posted.
  void Run() {
    BringUp();
    SetUpQueues();
    SetRq(RqReg::kEnable, 1);
    SetWq(WqReg::kEnable, 1);
    model.Step();
    CHECK(Get(ResourceType::kRq, 0, RqReg::kRunning) == 1);
    CHECK(Get(ResourceType::kWq, 0, WqReg::kRunning) == 1);
  }

  std::span<std::byte> At(uint64_t iova, size_t size) { return {memory + iova, size}; }
  void PutRx(uint32_t slot, uint64_t address, uint32_t length, RqType type = RqType::kOnlySop) {
    const auto bytes = ToBytes(Encode(RqEnetDesc{address, LengthField(length), type}));
    std::copy(bytes.begin(), bytes.end(), memory + kRq + 16 * slot);
  }
  void PutTx(uint32_t slot, const WqEnetDesc& d) { PutTxWords(slot, Encode(d)); }
  void PutTxWords(uint32_t slot, const Words& words) {
    const auto bytes = ToBytes(words);
    std::copy(bytes.begin(), bytes.end(), memory + kWq + 16 * slot);
  }
  Words CqWords(uint64_t base, uint32_t slot) {
    return FromBytes(std::span<const std::byte, 16>(memory + base + 16 * slot, 16));
  }
  CqEnetRqDesc RxDone(uint32_t slot) { return DecodeCqRq(CqWords(kRqCq, slot)); }
  CqEnetWqDesc TxDone(uint32_t slot) { return DecodeCqWq(CqWords(kWqCq, slot)); }

  void Step() {
    while (model.Step()) {
    }
  }
  // The one violation there is, or all of them.
  std::string Violation() {
    std::string all;
    for (const std::string& words : model.violations()) all += (all.empty() ? "" : " | ") + words;
    return all;
  }

  std::byte* memory;
  std::unique_ptr<dma::SoftwareIommu> iommu;
  TestWire wire;
  Model model;
  dma::MmioRegion bar;
  uint64_t result = 0;
};

#define CHECK_ONE_VIOLATION(bench, words)                        \
  do {                                                           \
    INFO((bench).Violation());                                   \
    CHECK((bench).model.violation_count() == 1);                 \
    CHECK((bench).Violation().find(words) != std::string::npos); \
  } while (false)

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_TESTS_NIC_ENIC_MODEL_BENCH_H_
