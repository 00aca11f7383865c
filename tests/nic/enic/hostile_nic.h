// SPDX-License-Identifier: Apache-2.0
//
// An enic that may misbehave, a wire that makes frames cheaply, and for every queue a second
// opinion: it reads the completions that the driver is about to read, by IOVA, and says what must
// come of them.
#ifndef DMAKIT_TESTS_NIC_ENIC_HOSTILE_NIC_H_
#define DMAKIT_TESTS_NIC_ENIC_HOSTILE_NIC_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nic/enic/commands.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::nic::enic {

// A few frames of many flows and sizes, over and over.
class FloodWire final : public Wire {
 public:
  FloodWire() {
    for (uint16_t i = 0; i < 32; ++i) {
      const uint32_t size = 60 + i * 47u;  // to 1517
      frames_.push_back(testing::MakeFrame({.size = size, .tcp = i % 2 == 0, .source_port = i}));
    }
  }
  std::optional<std::span<const std::byte>> Peek() override {
    if (left == 0) return std::nullopt;
    return std::span<const std::byte>(frames_[taken % frames_.size()]);
  }
  void Pop() override {
    --left;
    ++taken;
  }
  bool exhausted() const override { return left == 0; }
  void Accept(std::span<const std::byte> frame) override {
    ++sent;
    bool known = false;
    for (const Frame& f : frames_)
      known |= std::equal(frame.begin(), frame.end(), f.begin(), f.end());
    intact += known;
  }
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override { return {}; }

  uint64_t left = 0;
  uint64_t taken = 0;   // by the NIC
  uint64_t sent = 0;    // by the NIC
  uint64_t intact = 0;  // of those, as they were received
 private:
  std::vector<Frame> frames_;
};

// Where a driver stands in a queue, from what it writes to registers.
struct QueueView {
  uint64_t cq_base = 0;
  uint32_t size = 0;
  uint32_t cq_next = 0;
  bool last_color = false;
  uint32_t to_clean = 0;
  uint32_t to_use = 0;
  std::vector<bool> last;  // transmit: the last descriptor of a packet

  void Restart(uint32_t entries) {
    size = entries;
    cq_next = to_clean = to_use = 0;
    last_color = false;
    last.assign(entries, false);
  }
  uint32_t Ahead(uint32_t slot) const { return (slot + size - to_clean) % size; }
  uint32_t held() const { return size == 0 ? 0 : Ahead(to_use); }
};

// What one call of the driver must do.
struct Expected {
  uint64_t frames = 0;
  uint64_t bad = 0;
  uint64_t bad_fcs = 0;
  uint64_t truncated = 0;
  uint64_t skipped = 0;
  friend bool operator==(const Expected&, const Expected&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Expected& e) {
    return out << e.frames << " frames, " << e.bad << " bad, " << e.bad_fcs << " bad FCS, "
               << e.truncated << " truncated, " << e.skipped << " skipped";
  }
};

inline Expected Since(const RxQueueStats& before, const RxQueueStats& after) {
  return {after.frames - before.frames, after.bad_completions - before.bad_completions,
          after.bad_fcs - before.bad_fcs, after.truncated - before.truncated,
          after.skipped - before.skipped};
}
inline Expected Since(const TxQueueStats& before, const TxQueueStats& after) {
  return {after.frames - before.frames, after.bad_completions - before.bad_completions, 0, 0, 0};
}

// --- One NIC -------------------------------------------------------------------------------------

class HostileNic {
 public:
  static constexpr uint32_t kQueues = 4;

  HostileNic(const std::string& name, uint64_t seed)
      : name(name),
        iommu(dma::SoftwareIommu::Create({.name = name + " iommu"}).value()),
        model(iommu->NewPort(name),
              {.work_queues = kQueues, .receive_queues = kQueues, .hostile = seed}),
        bar(model.bar0()),
        waiter(model, dma::Nanos{10'000}),
        looker_(iommu->NewPort("looker")),
        wq_at_(BlockAt(model.bar0(), ResourceType::kWq, 0)),
        rq_at_(BlockAt(model.bar0(), ResourceType::kRq, 0)),
        cq_at_(BlockAt(model.bar0(), ResourceType::kCq, 0)) {
    model.Plug(&wire);
    bar.on_write = [this](uint64_t offset, uint64_t value) {
      Listen(offset, value);
      return true;
    };
  }

  absl::Status Open(dma::AddressSpace& space, const PortOptions& options) {
    rx_queues_ = options.rx_queues;
    auto device = space.Attach({.name = name, .domain = iommu.get(), .waiter = &waiter});
    if (!device.ok()) return device.status();
    auto made = Port::Create(*std::move(device),
                             dma::MmioRegion::OfModel(bar, RegisterFile::kBarBytes), options);
    if (!made.ok()) return made.status();
    port = *std::move(made);
    return absl::OkStatus();
  }

  // SOFT_RESET, past everybody; what else was being commanded is finished first.
  void Reset() {
    const dma::MmioRegion real = model.bar0();
    const uint64_t devcmd = BlockAt(real, ResourceType::kDevcmd, 0);
    model.Step();
    real.Write32(devcmd + kDevcmdCmd,
                 Encode(DevcmdWord{static_cast<uint16_t>(Devcmd::kSoftReset)}));
    model.Step();
  }

  // What the driver must make of the completions it will see, if it receives `burst` packets at
  // most (sheet 1.5, 3.2, 3.5).
  Expected ExpectReceive(uint32_t queue, size_t burst, uint32_t capacity) {
    Expected e;
    QueueView& v = rx_[queue];
    Words words;
    for (uint32_t looked = 0; looked < v.size && e.frames < burst && Look(v, words); ++looked) {
      const CqEnetRqDesc d = DecodeCqRq(words);
      if (d.type != CqType::kRqEnet || d.q_number != queue || d.completed_index >= v.size ||
          v.Ahead(d.completed_index) >= v.held()) {
        ++e.bad;
        continue;
      }
      e.skipped += v.Ahead(d.completed_index);
      v.to_clean = (d.completed_index + 1u) % v.size;
      const bool whole = d.sop && d.eop && d.bytes_written > 0 && d.bytes_written <= capacity;
      if (!d.truncated && whole) {
        ++e.frames;
      } else if (!d.truncated || d.fcs_ok) {
        ++e.bad;
      } else {
        ++(d.bytes_written > 0 ? e.bad_fcs : e.truncated);
      }
    }
    return e;
  }

  Expected ExpectReap(uint32_t queue) {
    Expected e;
    QueueView& v = tx_[queue];
    Words words;
    for (uint32_t looked = 0; looked < v.size && Look(v, words); ++looked) {
      const CqEnetWqDesc d = DecodeCqWq(words);
      if (d.type != CqType::kWqEnet || d.q_number != queue || d.completed_index >= v.size ||
          v.Ahead(d.completed_index) >= v.held() || !v.last[d.completed_index]) {
        ++e.bad;
        continue;
      }
      const uint32_t end = (d.completed_index + 1u) % v.size;
      for (; v.to_clean != end; v.to_clean = (v.to_clean + 1) % v.size) {
        e.frames += v.last[v.to_clean];
      }
    }
    return e;
  }
  // The driver has put packets of so many descriptors into the ring, the first at `at`.
  void Placed(uint32_t queue, uint32_t at, std::span<const uint32_t> pieces) {
    QueueView& v = tx_[queue];
    for (const uint32_t n : pieces) {
      for (uint32_t i = 1; i <= n; ++i, at = (at + 1) % v.size) v.last[at] = i == n;
    }
    CHECK(at == v.to_use);
  }
  uint32_t next_tx(uint32_t queue) const { return tx_[queue].to_use; }

  const std::string name;
  std::unique_ptr<dma::SoftwareIommu> iommu;
  FloodWire wire;
  Model model;
  ListeningBar bar;
  ModelWaiter waiter;
  std::unique_ptr<Port> port;

 private:
  void Listen(uint64_t offset, uint64_t value) {
    const auto in = [&](uint64_t base, uint32_t count) {
      return offset >= base && offset < base + uint64_t{count} * kBlockBytes;
    };
    const auto index = [&](uint64_t base) { return (offset - base) / kBlockBytes; };
    const auto is = [&](uint64_t base, auto reg) {
      return (offset - base) % kBlockBytes == OffsetOf(reg);
    };
    const uint32_t number = static_cast<uint32_t>(value);
    if (in(cq_at_, 2 * kQueues) && is(cq_at_, CqReg::kRingBase)) {
      const uint64_t cq = index(cq_at_);
      (cq < rx_queues_ ? rx_[cq] : tx_[cq - rx_queues_]).cq_base = value;
    } else if (in(rq_at_, kQueues)) {
      QueueView& v = rx_[index(rq_at_)];
      if (is(rq_at_, RqReg::kRingSize)) v.Restart(number);
      if (is(rq_at_, RqReg::kPostedIndex) && number < v.size) v.to_use = number;
    } else if (in(wq_at_, kQueues)) {
      QueueView& v = tx_[index(wq_at_)];
      if (is(wq_at_, WqReg::kRingSize)) v.Restart(number);
      if (is(wq_at_, WqReg::kPostedIndex) && number < v.size) v.to_use = number;
    }
  }

  bool Look(QueueView& v, Words& words) {
    std::array<std::byte, kDescriptorBytes> bytes{};
    REQUIRE(looker_->Read(Iova{v.cq_base} + Bytes{uint64_t{v.cq_next} * kDescriptorBytes}, bytes));
    words = FromBytes(bytes);
    const bool color = std::to_integer<unsigned>(bytes[kColorByte]) >> 7 != 0;
    if (color == v.last_color) return false;
    if (++v.cq_next == v.size) {
      v.cq_next = 0;
      v.last_color = !v.last_color;
    }
    return true;
  }

  std::unique_ptr<dma::DevicePort> looker_;
  const uint64_t wq_at_, rq_at_, cq_at_;
  uint32_t rx_queues_ = 0;
  std::array<QueueView, 2 * kQueues> rx_, tx_;
};

// A whole run of them.
struct HostileSetup {
  uint64_t seed = 1;
  bool two_nics = false;  // else packets leave where they came in
  uint32_t queues = 1;
  uint32_t ring = 64;
  dma::Policy policy = dma::Policy::kPersistent;
  HostileKinds kinds = kAllHostile;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_TESTS_NIC_ENIC_HOSTILE_NIC_H_
