// SPDX-License-Identifier: Apache-2.0
//
// FrozenBackend: another backend whose NICs the program cannot make work any more, from when it
// says so; the driver's own waits still can. Header only. Single-threaded.
#ifndef DMAKIT_TESTS_NIC_CMD_FROZEN_BACKEND_H_
#define DMAKIT_TESTS_NIC_CMD_FROZEN_BACKEND_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nic/backend.h"

namespace dmakit::nic::testing {

class FrozenModel final : public Model {
 public:
  FrozenModel(Model& model, const bool& frozen) : model_(model), frozen_(frozen) {}
  bool Step() override { return !frozen_ && model_.Step(); }
  void Plug(Wire* wire) override { model_.Plug(wire); }
  std::vector<std::string> violations() const override { return model_.violations(); }
  uint64_t violation_count() const override { return model_.violation_count(); }

 private:
  Model& model_;
  const bool& frozen_;
};

class FrozenNic final : public Nic {
 public:
  FrozenNic(std::unique_ptr<Nic> nic, const bool& frozen)
      : nic_(std::move(nic)), model_(*nic_->model(), frozen) {}
  dma::Domain& domain() override { return nic_->domain(); }
  absl::StatusOr<std::unique_ptr<Port>> Open(dma::AddressSpace& space,
                                             const PortOptions& options) override {
    return nic_->Open(space, options);
  }
  Model* model() override { return &model_; }
  dma::SoftwareIommu* iommu() override { return nic_->iommu(); }

 private:
  std::unique_ptr<Nic> nic_;
  FrozenModel model_;
};

class FrozenBackend final : public Backend {
 public:
  FrozenBackend(std::unique_ptr<Backend> backend, const bool& frozen)
      : backend_(std::move(backend)), frozen_(frozen) {}
  std::string_view name() const override { return backend_->name(); }
  std::string_view help() const override { return backend_->help(); }
  absl::StatusOr<std::unique_ptr<Nic>> Create(const NicArgs& args) override {
    auto nic = backend_->Create(args);
    if (!nic.ok()) return nic.status();
    return std::make_unique<FrozenNic>(*std::move(nic), frozen_);
  }

 private:
  std::unique_ptr<Backend> backend_;
  const bool& frozen_;
};

// `frozen` outlives the backend.
inline std::unique_ptr<Backend> NewFrozenBackend(std::unique_ptr<Backend> backend,
                                                 const bool& frozen) {
  return std::make_unique<FrozenBackend>(std::move(backend), frozen);
}

}  // namespace dmakit::nic::testing

#endif  // DMAKIT_TESTS_NIC_CMD_FROZEN_BACKEND_H_
