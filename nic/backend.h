// SPDX-License-Identifier: Apache-2.0
//
// How a program gets at a NIC it names at run time. A Backend is a kind of NIC; it makes a Nic
// (hardware: real, or a software model behind a software IOMMU), on which a Port is opened once the
// address space exists. A program registers the backends it links, by a call; nothing is registered
// behind its back.
//
// Lifetime: Backend > Nic > dma::AddressSpace > Port.
#ifndef DMAKIT_NIC_BACKEND_H_
#define DMAKIT_NIC_BACKEND_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/address_space.h"
#include "dma/domain.h"
#include "nic/model.h"
#include "nic/port.h"

namespace dmakit::dma {
class SoftwareIommu;
}

namespace dmakit::nic {

class Nic {
 public:
  virtual ~Nic() = default;
  virtual dma::Domain& domain() = 0;
  // Attaches a device to `space` and sets up a driver on it. Wrong options are InvalidArgument with
  // value and rule.
  virtual absl::StatusOr<std::unique_ptr<Port>> Open(dma::AddressSpace& space,
                                                     const PortOptions& options) = 0;
  // Accesses that the translation refused until now, and the first of them in words. For silicon
  // that is what the kernel has logged, which is evidence and no count: it leaves lines out.
  struct Faults {
    uint64_t count = 0;
    std::vector<std::string> words{};
  };
  virtual Faults CollectFaults() { return {}; }
  // Software NICs only; nullptr on silicon.
  virtual Model* model() { return nullptr; }
  virtual dma::SoftwareIommu* iommu() { return nullptr; }
};

struct NicArgs {
  std::string name{};  // of this instance: "enic0"
  std::map<std::string, std::string>
      keys{};  // what the command line gave; unknown ones are refused by name
  // Who steps a software NIC's model. False: the program does, and a driver's waits step it too.
  // True: a nic::ModelThread that the program starts, once it has the Nic, and ends before the Nic;
  // a driver's waits then take real time.
  bool threaded = false;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;  // "enic"
  virtual std::string_view help() const = 0;  // one line: what it is and its keys
  // Whether it drives silicon. A real NIC has a cable of its own, and answers in its own time;
  // others are software models, which are plugged into a Wire.
  virtual bool real() const { return false; }
  virtual absl::StatusOr<std::unique_ptr<Nic>> Create(const NicArgs& args) = 0;
};

class BackendRegistry {
 public:
  void Register(std::unique_ptr<Backend> backend) { backends_.push_back(std::move(backend)); }
  // InvalidArgument lists the names there are.
  absl::StatusOr<Backend*> Find(std::string_view name) const;
  const std::vector<std::unique_ptr<Backend>>& all() const { return backends_; }

 private:
  std::vector<std::unique_ptr<Backend>> backends_;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_BACKEND_H_
