// SPDX-License-Identifier: Apache-2.0
//
// RealBackend turns a software NIC into one that a program cannot tell from silicon: its model has
// a thread of its own, which nobody can step or hold, and a cable that the program knows nothing
// of.
#ifndef DMAKIT_TESTS_NIC_CMD_REAL_BACKEND_H_
#define DMAKIT_TESTS_NIC_CMD_REAL_BACKEND_H_

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "dma/host/clock.h"
#include "nic/backend.h"
#include "nic/model.h"
#include "nic/wire/wire.h"

namespace dmakit::nic::testing {

class RealNic final : public Nic {
 public:
  RealNic(std::unique_ptr<Nic> nic, Wire& cable) : nic_(std::move(nic)) {
    nic_->model()->Plug(&cable);
    thread_ = ModelThread::Start(*nic_->model(), threads_).value();
  }
  dma::Domain& domain() override { return nic_->domain(); }
  absl::StatusOr<std::unique_ptr<Port>> Open(dma::AddressSpace& space,
                                             const PortOptions& options) override {
    return nic_->Open(space, options);
  }

 private:
  dma::host::SystemThreads threads_;
  std::unique_ptr<Nic> nic_;
  std::optional<ModelThread> thread_;  // ends before the NIC
};

class RealBackend final : public Backend {
 public:
  RealBackend(std::unique_ptr<Backend> backend, Wire& cable)
      : backend_(std::move(backend)), cable_(cable) {}
  std::string_view name() const override { return "real"; }
  std::string_view help() const override { return "a NIC that runs by itself"; }
  bool real() const override { return true; }
  absl::StatusOr<std::unique_ptr<Nic>> Create(const NicArgs& args) override {
    NicArgs own = args;
    own.threaded = true;
    auto nic = backend_->Create(own);
    if (!nic.ok()) return nic.status();
    return std::make_unique<RealNic>(*std::move(nic), cable_);
  }

 private:
  std::unique_ptr<Backend> backend_;
  Wire& cable_;
};

}  // namespace dmakit::nic::testing

#endif  // DMAKIT_TESTS_NIC_CMD_REAL_BACKEND_H_
