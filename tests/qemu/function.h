// SPDX-License-Identifier: Apache-2.0
//
// Function: one e1000e of the guest without a port around it, for tests that give its driver
// buffers and addresses of their own. As Pair otherwise.
#ifndef DMAKIT_TESTS_QEMU_FUNCTION_H_
#define DMAKIT_TESTS_QEMU_FUNCTION_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dma/address_space.h"
#include "dma/device.h"
#include "dma/host/vfio_kernel.h"
#include "nic/e1000e/driver.h"
#include "nic/vfio_function.h"
#include "tests/qemu/pair.h"

namespace dmakit::qemu {

inline constexpr nic::PciId kE1000e[] = {{0x8086, 0x10d3}};

class Function {
 public:
  Function(dma::host::VfioKernel& kernel, size_t index)
      : name_("e1000e" + std::to_string(index)),
        vfio_(Need(nic::VfioFunction::Open(
            kernel, {.name = name_, .address = kAddress[index], .ids = kE1000e}))),
        registers_(Need(vfio_->device().MapBar(0))) {}

  // Once: in `space`, for drivers. The DMA of whoever had it before has ended.
  void Attach(dma::AddressSpace& space) {
    device_ = Need(space.Attach({.name = name_, .domain = &vfio_->domain()}));
    REQUIRE(nic::e1000e::Quiesce(registers_, device_->waiter()).ok());
  }
  void Detach() { device_.reset(); }

  template <typename Source, typename Addressing>
  std::unique_ptr<nic::e1000e::Driver<Source, Addressing>> Start(
      const nic::e1000e::DriverOptions& options, std::vector<Source> sources,
      std::vector<Addressing> addressings) {
    auto driver = Need(nic::e1000e::Driver<Source, Addressing>::Create(
        *device_, registers_, options, std::move(sources), std::move(addressings)));
    REQUIRE(vfio_->device().EnableBusMaster().ok());
    const absl::Status started = driver->Start();
    INFO(started.message());
    REQUIRE(started.ok());
    return driver;
  }

  nic::VfioFunction& vfio() { return *vfio_; }
  dma::Device& device() { return *device_; }

 private:
  const std::string name_;
  std::unique_ptr<nic::VfioFunction> vfio_;
  dma::MmioRegion registers_;
  std::unique_ptr<dma::Device> device_;
};

}  // namespace dmakit::qemu

#endif  // DMAKIT_TESTS_QEMU_FUNCTION_H_
