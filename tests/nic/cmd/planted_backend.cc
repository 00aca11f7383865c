// SPDX-License-Identifier: Apache-2.0

#include "tests/nic/cmd/planted_backend.h"

#include <cstdint>
#include <cstring>
#include <deque>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "dma/address_space.h"
#include "dma/raw.h"
#include "dma/software_iommu.h"
#include "nic/enic/driver.h"
#include "nic/enic/model.h"
#include "nic/frag_source.h"
#include "nic/rx_pool.h"

namespace dmakit::nic::testing {
namespace {

constexpr uint64_t kWhen = 20;
constexpr size_t kPage = 4096;

struct AlignedDelete {
  void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{kPage}); }
};
using Memory = std::unique_ptr<std::byte, AlignedDelete>;

// Buffers that the device writes to, each mapped once; frames are copied out of them.
class CopySource {
 public:
  CopySource(dma::Device& device, FragSource pages, std::string owner, std::string fault)
      : device_(&device),
        pages_(std::move(pages)),
        owner_(std::move(owner)),
        fault_(std::move(fault)) {}

  bool Take(RxBuffer& out) {
    if (!pages_.Take(out)) return false;
    if (++taken_ == kWhen && fault_ == "recycle") {
      // The mistake: it is about to be posted, and others of the page are.
      pages_.Rest();
      for (uint32_t n = out.page->outstanding; n > 0; --n) pages_.pool().Release(out.page);
      return true;
    }
    if (fault_ == "recycle") return true;
    if (free_.empty() && !Grow(out.capacity)) {
      pages_.Put(out);
      return false;
    }
    out.token = free_.back() + 1;
    free_.pop_back();
    out.iova = buffers_[out.token - 1].mapping.iova();
    return true;
  }
  void OnReceived(const RxBuffer& buffer, uint32_t length) {
    if (buffer.token == 0) return;
    Buffer& from = buffers_[buffer.token - 1];
    const bool forget = ++received_ == kWhen && fault_ == "missing-sync";
    if (!forget) from.mapping.SyncForCpu(0, length).IgnoreError();
    std::memcpy(buffer.page->base + buffer.offset, from.memory.get(), length);
    from.mapping.SyncForDevice(0, length).IgnoreError();
    free_.push_back(buffer.token - 1);
  }
  void Put(const RxBuffer& buffer) {
    if (buffer.token != 0) free_.push_back(buffer.token - 1);
    pages_.Put(buffer);
  }
  void Rest() { pages_.Rest(); }
  frag::PagePool& pool() const { return pages_.pool(); }

 private:
  struct Buffer {
    Memory memory;
    dma::Mapping mapping;
  };

  bool Grow(uint32_t capacity) {
    const size_t size = (capacity + kPage - 1) / kPage * kPage;
    Memory memory(static_cast<std::byte*>(::operator new (size, std::align_val_t{kPage})));
    auto mapping =
        device_->Map({memory.get(), size}, dma::Direction::kFromDevice, {.owner = owner_});
    if (!mapping.ok()) return false;
    free_.push_back(buffers_.size());
    buffers_.push_back({std::move(memory), *std::move(mapping)});
    return true;
  }

  dma::Device* device_;
  FragSource pages_;
  std::string owner_;
  std::string fault_;
  std::deque<Buffer> buffers_;
  std::vector<size_t> free_;
  uint64_t taken_ = 0;
  uint64_t received_ = 0;
};
static_assert(RxBufferSource<CopySource>);

// Maps what is sent, segment by segment.
class MapAddressing {
 public:
  MapAddressing(dma::Device& device, std::string owner, std::string fault)
      : device_(&device), owner_(std::move(owner)), fault_(std::move(fault)) {}

  bool Address(const Segment& segment, Iova& out, uint64_t& token) {
    if (raw_ == nullptr) raw_ = std::make_unique<dma::RawDma>(*device_);
    out = raw_->MapSingle(segment.bytes(), dma::Direction::kToDevice, owner_);
    if (raw_->IsError(out)) return false;
    token = out.value();
    if (fault_ == "unmap-posted" && mapped_ == kWhen) Unmap(last_, last_length_);
    if (++mapped_ != kWhen) return true;
    last_ = out;
    last_length_ = segment.length;
    if (fault_ == "early-free") Unmap(out, segment.length);
    if (fault_ == "changed") segment.data()[7] ^= std::byte{1};
    return true;
  }
  void Done(const Segment& segment, uint64_t token) {
    const bool now = ++done_ == kWhen;
    if (now && (fault_ == "early-free" || fault_ == "unmap-posted")) return;
    Unmap(Iova{token}, segment.length - (now && fault_ == "wrong-length"));
  }
  void Close() { raw_.reset(); }

 private:
  void Unmap(Iova at, uint32_t length) {
    raw_->UnmapSingle(at, Bytes{length}, dma::Direction::kToDevice).IgnoreError();
  }

  dma::Device* device_;
  std::unique_ptr<dma::RawDma> raw_;
  std::string owner_;
  std::string fault_;
  Iova last_{0};
  uint32_t last_length_ = 0;
  uint64_t mapped_ = 0;
  uint64_t done_ = 0;
};
static_assert(TxAddressing<MapAddressing>);

using PlantedDriver = enic::Driver<CopySource, MapAddressing>;

class PlantedPort final : public Port {
 public:
  static absl::StatusOr<std::unique_ptr<Port>> Create(std::unique_ptr<dma::Device> device,
                                                      const dma::MmioRegion& bar0,
                                                      const PortOptions& options,
                                                      const std::string& fault) {
    std::unique_ptr<PlantedPort> port(new PlantedPort(std::move(device), options));
    dma::Device& d = *port->device_;
    const std::string name(d.name());
    auto plan = PlanRxPool(options, options.ring_size - 1);
    if (!plan.ok()) return plan.status();
    std::vector<CopySource> sources;
    if (options.rx_queues != 0) {
      auto pool = NewRxPool(d.address_space(), options, *plan, name + " buffers", d.waiter());
      if (!pool.ok()) return pool.status();
      port->pool_ = *std::move(pool);
      auto pages = FragSource::Create(*port->pool_, {.size = plan->buffer_size,
                                                     .headroom = options.headroom,
                                                     .capacity = options.mtu + kFrameOverhead});
      if (!pages.ok()) return pages.status();
      sources.emplace_back(d, *std::move(pages), name + " rq 0", fault);
    }
    std::vector<MapAddressing> addressings;
    if (options.tx_queues != 0) addressings.emplace_back(d, name + " wq 0", fault);
    auto driver =
        PlantedDriver::Create(d, bar0, {.ring_size = options.ring_size, .mtu = options.mtu},
                              std::move(sources), std::move(addressings));
    if (!driver.ok()) return driver.status();
    port->driver_ = *std::move(driver);
    return port;
  }
  ~PlantedPort() override { Stop().IgnoreError(); }

  std::string_view name() const override { return driver_->name(); }
  const PortOptions& options() const override { return options_; }
  uint32_t max_frame() const override { return driver_->max_frame(); }
  absl::Status Start() override { return driver_->Start(); }
  absl::Status Stop() override {
    if (driver_ == nullptr) return absl::OkStatus();
    const absl::Status stopped = driver_->Stop();
    if (driver_->rx_count() != 0) driver_->rx(0).source().Rest();
    if (driver_->tx_count() != 0) driver_->tx(0).addressing().Close();
    return stopped;
  }
  size_t Receive(uint32_t queue, std::span<Packet> burst) override {
    return driver_->rx(queue).Receive(burst);
  }
  size_t Transmit(uint32_t queue, std::span<Packet> burst) override {
    return driver_->tx(queue).Transmit(burst);
  }
  size_t Reap(uint32_t queue) override { return driver_->tx(queue).Reap(); }
  frag::PagePool& rx_pool(uint32_t) override { return *pool_; }
  void SetTxOwner(uint32_t queue, frag::PagePool* pool) override {
    driver_->tx(queue).SetOwner(pool);
  }
  PortStats stats() const override {
    PortStats stats;
    stats.name = driver_->name();
    stats.queues.resize(1);
    if (driver_->rx_count() != 0) stats.queues[0].rx = driver_->rx_stats(0);
    if (driver_->tx_count() != 0) stats.queues[0].tx = driver_->tx_stats(0);
    if (pool_ != nullptr) stats.queues[0].pool = pool_->stats();
    return stats;
  }

 private:
  PlantedPort(std::unique_ptr<dma::Device> device, const PortOptions& options)
      : device_(std::move(device)), options_(options) {}

  std::unique_ptr<dma::Device> device_;
  const PortOptions options_;
  std::unique_ptr<frag::PagePool> pool_;
  std::unique_ptr<PlantedDriver> driver_;
};

class PlantedNic final : public Nic {
 public:
  PlantedNic(const NicArgs& args, std::unique_ptr<dma::SoftwareIommu> iommu)
      : args_(args),
        iommu_(std::move(iommu)),
        model_(iommu_->NewPort(args.name), {}),
        waiter_(model_) {}

  dma::Domain& domain() override { return *iommu_; }
  Model* model() override { return &model_; }
  dma::SoftwareIommu* iommu() override { return iommu_.get(); }
  absl::StatusOr<std::unique_ptr<Port>> Open(dma::AddressSpace& space,
                                             const PortOptions& options) override {
    auto device = space.Attach({.name = args_.name, .domain = iommu_.get(), .waiter = &waiter_});
    if (!device.ok()) return device.status();
    const auto fault = args_.keys.find("fault");
    return PlantedPort::Create(*std::move(device), model_.bar0(), options,
                               fault == args_.keys.end() ? "" : fault->second);
  }

 private:
  const NicArgs args_;
  std::unique_ptr<dma::SoftwareIommu> iommu_;
  enic::Model model_;
  ModelWaiter waiter_;
};

class PlantedBackend final : public Backend {
 public:
  std::string_view name() const override { return "planted"; }
  std::string_view help() const override { return "enic with a mistake"; }
  absl::StatusOr<std::unique_ptr<Nic>> Create(const NicArgs& args) override {
    auto iommu = dma::SoftwareIommu::Create({.name = args.name + " iommu"});
    if (!iommu.ok()) return iommu.status();
    return std::make_unique<PlantedNic>(args, *std::move(iommu));
  }
};

}  // namespace

std::unique_ptr<Backend> NewPlantedBackend() { return std::make_unique<PlantedBackend>(); }

}  // namespace dmakit::nic::testing
