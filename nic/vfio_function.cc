// SPDX-License-Identifier: Apache-2.0

#include "nic/vfio_function.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dma/host/kernel_faults.h"

namespace dmakit::nic {
namespace {

constexpr size_t kFaultsInWords = 16;

void ToStderr(std::string_view line) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

}  // namespace

class VfioFunction::Listener final : public dma::FaultListener {
 public:
  void OnFault(const dma::DomainFault& fault) override {
    std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
    if (words_.size() == kFaultsInWords) return;
    words_.push_back(absl::StrCat(std::string(fault.device), " ",
                                  std::string(dma::Name(fault.access)), " at ",
                                  ToString(fault.iova), ": ", std::string(fault.reason)));
  }
  uint64_t count() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return count_;
  }
  std::vector<std::string> words() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return words_;
  }

 private:
  mutable std::mutex mutex_;
  uint64_t count_ = 0;
  std::vector<std::string> words_;
};

VfioFunction::VfioFunction(Options options)
    : options_(std::move(options)), listener_(std::make_unique<Listener>()) {
  if (!options_.report) options_.report = ToStderr;
}

VfioFunction::~VfioFunction() {
  if (domain_ != nullptr) domain_->RemoveFaultListener(listener_.get());
}

absl::StatusOr<std::unique_ptr<VfioFunction>> VfioFunction::Open(dma::host::VfioKernel& kernel,
                                                                 Options options) {
  std::unique_ptr<VfioFunction> function(new VfioFunction(std::move(options)));
  const Options& own = function->options_;
  dma::host::VfioContainer::Options container;
  container.name = absl::StrCat(own.name, " iommu");
  container.report = own.report;
  container.sysfs = own.sysfs;
  container.dev = own.dev;
  auto log = dma::host::KernelFaultLog::Open(own.kernel_log);
  if (log.ok()) {
    container.faults = *std::move(log);
  } else {
    own.report(
        absl::StrCat(own.name, ": faults of the IOMMU will not be seen: ", log.status().message()));
  }
  auto opened = dma::host::VfioContainer::Open(kernel, std::move(container));
  if (!opened.ok()) return opened.status();
  function->container_ = *std::move(opened);
  auto device = dma::host::VfioDevice::Open(*function->container_, own.address,
                                            {.most_vectors = own.most_vectors});
  if (!device.ok()) return device.status();
  function->device_ = *std::move(device);
  const dma::host::VfioDevice& there = *function->device_;
  const bool known = std::any_of(own.ids.begin(), own.ids.end(), [&](const PciId& id) {
    return id.vendor == there.vendor_id() && id.device == there.device_id();
  });
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s is %04x:%04x, which this driver does not know; `dmakit devices` "
                        "lists what there is",
                        own.name, own.address, there.vendor_id(), there.device_id()));
  }
  auto domain = function->container_->domain();
  if (!domain.ok()) return domain.status();
  function->domain_ = *domain;
  function->domain_->AddFaultListener(function->listener_.get());
  return function;
}

void VfioFunction::PollFaults() { domain_->PollFaults(); }
uint64_t VfioFunction::fault_count() const { return listener_->count(); }
std::vector<std::string> VfioFunction::faults() const { return listener_->words(); }

absl::Status VfioFunction::Connect(uint32_t vector, Notifier* notifier) {
  return device_->ConnectMsix(vector, notifier == nullptr ? -1 : notifier->fd());
}

}  // namespace dmakit::nic
