// SPDX-License-Identifier: Apache-2.0

#include "tests/nic/cmd/fake_backend.h"

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dma/device.h"
#include "dma/device_port.h"
#include "dma/software_iommu.h"
#include "frag/frag_allocator.h"
#include "frag/page_pool.h"
#include "frag/returner.h"
#include "nic/wire/spec.h"
#include "nic/wire/wire.h"

namespace dmakit::nic::testing {
namespace {

using Keys = std::map<std::string, uint64_t>;

// The n-th of something, counted from 1, is one of every `key`.
bool Every(const Keys& keys, const char* key, uint64_t n) {
  return keys.at(key) != 0 && n % keys.at(key) == 0;
}

struct RxRing {
  std::unique_ptr<frag::PagePool> pool;
  std::unique_ptr<frag::FragAllocator> buffers;
  std::deque<frag::Fragment> posted;
  std::deque<Segment> received;
  RxQueueStats stats;
};

struct TxRing {
  frag::PagePool* owner = nullptr;
  std::deque<Packet> posted;
  std::deque<Packet> finished;
  TxQueueStats stats;
};

// What the device part works on; it outlives the port.
struct Device {
  Keys keys;
  std::unique_ptr<dma::DevicePort> memory;
  Wire* wire = nullptr;
  std::deque<RxRing>* rx = nullptr;  // while a port is started
  std::deque<TxRing>* tx = nullptr;
  uint64_t received = 0;
  uint64_t sent = 0;
};

class FakePort final : public Port {
 public:
  FakePort(Device& device, std::string name, const PortOptions& options)
      : device_(device), name_(std::move(name)), options_(options) {}

  absl::Status SetUp(dma::AddressSpace& space, dma::Domain& domain) {
    if (options_.ring_size < 2 || options_.ring_size > 4096) {
      return absl::InvalidArgumentError(
          absl::StrCat("ring size ", options_.ring_size, ": must be between 2 and 4096"));
    }
    auto attached = space.Attach({.name = name_, .domain = &domain});
    if (!attached.ok()) return attached.status();
    attached_ = *std::move(attached);
    const uint32_t size = RxBufferSize(options_.mtu, options_.headroom);
    for (uint32_t q = 0; q < options_.rx_queues; ++q) {
      RxRing& ring = rx_.emplace_back();
      auto pool = frag::PagePool::Create(space, {.label = absl::StrCat(name_, "/rx", q),
                                                 .order = options_.page_order.value_or(4),
                                                 .policy = options_.policy});
      if (!pool.ok()) return pool.status();
      ring.pool = *std::move(pool);
      auto buffers = frag::FragAllocator::Create(*ring.pool, {.size = size});
      if (!buffers.ok()) return buffers.status();
      ring.buffers = std::make_unique<frag::FragAllocator>(*std::move(buffers));
    }
    tx_.resize(options_.tx_queues);
    return absl::OkStatus();
  }
  ~FakePort() override { Stop().IgnoreError(); }

  std::string_view name() const override { return name_; }
  const PortOptions& options() const override { return options_; }
  uint32_t max_frame() const override { return options_.mtu + 18; }

  absl::Status Start() override {
    device_.rx = &rx_;
    device_.tx = &tx_;
    for (RxRing& ring : rx_) Refill(ring);
    return absl::OkStatus();
  }
  absl::Status Stop() override {
    device_.rx = nullptr;
    device_.tx = nullptr;
    for (RxRing& ring : rx_) {
      ring.stats.left_at_stop += ring.received.size();
      for (const Segment& s : ring.received) ring.pool->Release(s.page);
      for (const frag::Fragment& f : ring.posted) ring.pool->Release(f);
      ring.received.clear();
      ring.posted.clear();
    }
    for (TxRing& ring : tx_) {
      ring.stats.dropped += ring.posted.size();
      Release(ring, ring.posted);
      Release(ring, ring.finished);
    }
    if (device_.keys.at("stop") == 0) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(name_, ": told not to stop"));
  }

  size_t Receive(uint32_t queue, std::span<Packet> burst) override {
    RxRing& ring = rx_.at(queue);
    size_t n = 0;
    for (; n < burst.size() && !ring.received.empty(); ++n) {
      burst[n].ResetTo(ring.received.front());
      ring.received.pop_front();
      ++ring.stats.frames;
      ring.stats.bytes += burst[n].length;
    }
    Refill(ring);
    return n;
  }
  size_t Transmit(uint32_t queue, std::span<Packet> burst) override {
    TxRing& ring = tx_.at(queue);
    size_t n = 0;
    const uint64_t room = device_.keys.at("room");
    const uint64_t limit = room != 0 ? room : options_.ring_size - 1;
    while (n < burst.size() && ring.posted.size() + ring.finished.size() < limit) {
      ring.posted.push_back(burst[n++]);
    }
    if (n < burst.size()) ++ring.stats.ring_full;
    return n;
  }
  size_t Reap(uint32_t queue) override {
    TxRing& ring = tx_.at(queue);
    const size_t n = ring.finished.size();
    Release(ring, ring.finished);
    return n;
  }

  frag::PagePool& rx_pool(uint32_t queue) override { return *rx_.at(queue).pool; }
  void SetTxOwner(uint32_t queue, frag::PagePool* pool) override { tx_.at(queue).owner = pool; }

  PortStats stats() const override {
    PortStats stats{name_, std::vector<QueueStats>(std::max(rx_.size(), tx_.size()))};
    for (size_t q = 0; q < rx_.size(); ++q) {
      stats.queues[q].rx = rx_[q].stats;
      stats.queues[q].rx.posted = rx_[q].posted.size();
      stats.queues[q].pool = rx_[q].pool->stats();
    }
    for (size_t q = 0; q < tx_.size(); ++q) {
      stats.queues[q].tx = tx_[q].stats;
      stats.queues[q].tx.in_flight = tx_[q].posted.size() + tx_[q].finished.size();
    }
    return stats;
  }

 private:
  void Refill(RxRing& ring) {
    while (ring.posted.size() + ring.received.size() < options_.ring_size - 1) {
      const frag::Fragment fragment = ring.buffers->Allocate();
      if (fragment.empty()) {
        ++ring.stats.refill_failed;
        return;
      }
      ring.posted.push_back(fragment);
    }
  }
  static void Release(TxRing& ring, std::deque<Packet>& packets) {
    frag::Returner returner(ring.owner);
    for (Packet& packet : packets) ReleaseSegments(packet, returner);
    packets.clear();
  }

  Device& device_;
  const std::string name_;
  const PortOptions options_;
  std::unique_ptr<dma::Device> attached_;
  std::deque<RxRing> rx_;
  std::deque<TxRing> tx_;
};

class FakeModel final : public Model {
 public:
  explicit FakeModel(Device& device) : device_(device) {}

  bool Step() override {
    bool worked = false;
    for (int i = 0; i < 32; ++i) worked |= ReceiveOne();
    if (device_.tx == nullptr) return worked;
    for (TxRing& ring : *device_.tx) {
      for (int i = 0; i < 32; ++i) worked |= SendOne(ring);
    }
    return worked;
  }
  void Plug(Wire* wire) override { device_.wire = wire; }
  std::vector<std::string> violations() const override {
    return std::vector<std::string>(violation_count(), "told to record a violation");
  }
  uint64_t violation_count() const override { return device_.keys.at("violate"); }

 private:
  bool ReceiveOne() {
    if (device_.rx == nullptr || device_.rx->empty() || device_.wire == nullptr) return false;
    const auto frame = device_.wire->Peek();
    RxRing& ring = device_.rx->at(device_.received % device_.rx->size());
    if (!frame || ring.posted.empty()) return false;
    const uint64_t n = ++device_.received;
    const frag::Fragment buffer = ring.posted.front();
    if (frame->size() > buffer.size - 64) {
      ++ring.stats.truncated;
      ++ring.stats.dropped;
    } else {
      const Segment segment{buffer.page, buffer.offset + 64, static_cast<uint32_t>(frame->size())};
      if (!device_.memory->Write(segment.iova(), *frame)) ++ring.stats.bad_completions;
      if (Every(device_.keys, "fault", n)) {
        (void)device_.memory->Write(Iova{uint64_t{1} << 46}, *frame);
      }
      ring.posted.pop_front();
      ring.received.push_back(segment);
    }
    device_.wire->Pop();
    return true;
  }

  bool SendOne(TxRing& ring) {
    const uint64_t stall = device_.keys.at("stall");
    if (ring.posted.empty() || (stall != 0 && device_.sent >= stall)) return false;
    const uint64_t n = ++device_.sent;
    Packet& packet = ring.posted.front();
    std::vector<std::byte> frame;
    for (const Segment& segment : packet.parts()) {
      const size_t at = frame.size();
      frame.resize(at + segment.length);
      if (!device_.memory->Read(segment.iova(), std::span(frame).subspan(at))) {
        ++ring.stats.device_errors;
      }
    }
    if (Every(device_.keys, "corrupt", n)) frame.back() ^= std::byte{1};
    if (!Every(device_.keys, "drop", n)) device_.wire->Accept(frame);
    if (Every(device_.keys, "twice", n)) device_.wire->Accept(frame);
    ++ring.stats.frames;
    ring.stats.bytes += frame.size();
    ring.finished.push_back(packet);
    ring.posted.pop_front();
    return true;
  }

  Device& device_;
};

class FakeNic final : public Nic {
 public:
  FakeNic(std::string name, Keys keys, std::unique_ptr<dma::SoftwareIommu> iommu)
      : name_(std::move(name)), iommu_(std::move(iommu)), model_(device_) {
    device_.keys = std::move(keys);
    device_.memory = iommu_->NewPort(name_);
  }

  dma::Domain& domain() override { return *iommu_; }
  absl::StatusOr<std::unique_ptr<Port>> Open(dma::AddressSpace& space,
                                             const PortOptions& options) override {
    auto port = std::make_unique<FakePort>(device_, name_, options);
    if (absl::Status s = port->SetUp(space, *iommu_); !s.ok()) return s;
    if (device_.keys.at("leak") != 0) {
      const absl::Status mapped =
          iommu_->Map(*Range::Make(Iova{uint64_t{1} << 45}, Bytes{4096}),
                      dma::MemoryView::Of(std::span(leaked_)), dma::Access::kRead);
      if (!mapped.ok()) return mapped;
    }
    return port;
  }
  Model* model() override { return &model_; }
  dma::SoftwareIommu* iommu() override { return iommu_.get(); }

 private:
  const std::string name_;
  std::unique_ptr<dma::SoftwareIommu> iommu_;
  Device device_;
  FakeModel model_;
  alignas(4096) std::array<std::byte, 4096> leaked_{};
};

class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(std::map<std::string, std::string> keys) : keys_(std::move(keys)) {}
  std::string_view name() const override { return "fake"; }
  std::string_view help() const override { return "no real NIC"; }
  absl::StatusOr<std::unique_ptr<Nic>> Create(const NicArgs& args) override {
    Keys keys;
    for (const char* key :
         {"drop", "twice", "corrupt", "stall", "fault", "violate", "leak", "stop", "room"}) {
      keys[key] = 0;
    }
    auto given = args.keys;
    given.insert(keys_.begin(), keys_.end());
    for (const auto& [key, text] : given) {
      if (keys.count(key) == 0) {
        return absl::InvalidArgumentError(absl::StrCat("backend fake: unknown key ", Quote(key)));
      }
      const auto value = ParseNumber(absl::StrCat("backend fake: ", key), text, 0, 1'000'000);
      if (!value.ok()) return value.status();
      keys[key] = *value;
    }
    auto iommu = dma::SoftwareIommu::Create({.name = args.name});
    if (!iommu.ok()) return iommu.status();
    return std::make_unique<FakeNic>(args.name, std::move(keys), *std::move(iommu));
  }

 private:
  const std::map<std::string, std::string> keys_;
};

}  // namespace

std::unique_ptr<Backend> NewFakeBackend(std::map<std::string, std::string> keys) {
  return std::make_unique<FakeBackend>(std::move(keys));
}

}  // namespace dmakit::nic::testing
