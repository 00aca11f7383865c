// SPDX-License-Identifier: Apache-2.0
//
// IOMMU faults in the kernel's log: what the lines mean, and what is made of lines that mean
// nothing.
#include "dma/host/kernel_faults.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/dma/host/vfio_testing.h"

namespace dmakit::dma::host {
namespace {

using testing::Pages;
using testing::Says;

const std::string kIntel =
    "DMAR: [DMA Write NO_PASID] Request device [00:04.0] fault addr 0xfffff000 "
    "[fault reason 0x05] PTE Write access is not set";
const std::string kAmd =
    "AMD-Vi: Event logged [IO_PAGE_FAULT device=02:00.0 domain=0x0000 address=0xfdf00000 "
    "flags=0x0020]";

std::optional<KernelFault> Parse(const std::string& message) {
  KernelFault fault;
  if (ParseFaultLine(message, &fault) != FaultLine::kFault) return std::nullopt;
  return fault;
}
FaultLine KindOf(const std::string& message) {
  KernelFault fault;
  return ParseFaultLine(message, &fault);
}

// --- Lines --------------------------------------------------------------------------------------

TEST_CASE("Intel's line of today") {
  const auto fault = Parse(kIntel);
  REQUIRE(fault.has_value());
  CHECK(fault->device == "00:04.0");
  CHECK(fault->iova == Iova(0xfffff000));
  CHECK(fault->access == Access::kWrite);
  CHECK(fault->reason == "PTE Write access is not set");
  const auto pasid = Parse(
      "DMAR: [DMA Read PASID 0x1f] Request device [3a:1e.7] fault addr 0xffffffffffffffff "
      "[fault reason 0x71] SM: Present bit in first-level paging entry is clear");
  REQUIRE(pasid.has_value());
  CHECK(pasid->device == "3a:1e.7");
  CHECK(pasid->iova == Iova::Max());
  CHECK(pasid->access == Access::kRead);
}

TEST_CASE("Intel's older lines") {
  for (const char* message :
       {"DMAR:[DMA Read] Request device [04:00.0] fault addr 7f1000 \\x0aDMAR:[fault reason 06] "
        "PTE Read access is not set",
        "DMAR: [DMA Read] Request device [04:00.0] fault addr 7f1000 [fault reason 06] PTE Read "
        "access is not set",
        "DMAR: [DMA Read] Request device [04:00.0] PASID ffffffff fault addr 7f1000 "
        "[fault reason 06] PTE Read access is not set"}) {
    INFO(message);
    const auto fault = Parse(message);
    REQUIRE(fault.has_value());
    CHECK(fault->device == "04:00.0");
    CHECK(fault->iova == Iova(0x7f1000));
    CHECK(fault->access == Access::kRead);
    CHECK(fault->reason == "PTE Read access is not set");
  }
}

TEST_CASE("AMD's lines, with the device inside or before") {
  const auto inside = Parse(kAmd);
  REQUIRE(inside.has_value());
  CHECK(inside->device == "02:00.0");
  CHECK(inside->iova == Iova(0xfdf00000));
  CHECK(inside->access == Access::kWrite);
  const auto before = Parse(
      "vfio-pci 0000:0b:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021 "
      "address=0xffd0 flags=0x0010]");
  REQUIRE(before.has_value());
  CHECK(before->device == "0000:0b:00.0");
  CHECK(before->access == Access::kRead);
  CHECK(before->reason == "IO_PAGE_FAULT flags=0x10");
}

TEST_CASE("a device is itself, with or without its domain") {
  CHECK(KernelFault{.device = "00:04.0"}.IsOf("0000:00:04.0"));
  CHECK(KernelFault{.device = "0000:00:04.0"}.IsOf("0000:00:04.0"));
  CHECK_FALSE(KernelFault{.device = "0001:00:04.0"}.IsOf("0000:00:04.0"));
  CHECK_FALSE(KernelFault{.device = "00:04.0"}.IsOf("0000:00:04.1"));
  CHECK_FALSE(KernelFault{.device = "0:04.0"}.IsOf("0000:00:04.0"));
  CHECK_FALSE(KernelFault{.device = ""}.IsOf("0000:00:04.0"));
}

TEST_CASE("lines of other things are passed over") {
  for (const char* message :
       {"", "DMAR: DRHD: handling fault status reg 3", "DMAR: INTR-REMAP: Request device [00:04.0]",
        "AMD-Vi: Event logged [INVALID_DEVICE_REQUEST device=00:00.0]", "usb 1-1: new device",
        "e1000e 0000:00:04.0: DMAR: [DMA Write NO_PASID]"}) {
    INFO(message);
    CHECK(KindOf(message) == FaultLine::kOther);
  }
}

TEST_CASE("a line cut anywhere is a fault as a whole, or none at all") {
  for (const std::string& line : {kIntel, kAmd}) {
    const KernelFault whole = *Parse(line);
    for (size_t length = 0; length < line.size(); ++length) {
      INFO(line.substr(0, length));
      const auto fault = Parse(line.substr(0, length));
      if (!fault) continue;  // never with a part of a number
      CHECK(fault->device == whole.device);
      CHECK(fault->iova == whole.iova);
      CHECK(fault->access == whole.access);
    }
    CHECK(KindOf(line.substr(0, line.size() / 2)) == FaultLine::kBad);
  }
}

TEST_CASE("lines that nobody's kernel wrote are bad") {
  for (const char* message :
       {"DMAR: [DMA Erase] Request device [00:04.0] fault addr 0x0 [fault reason 0x05] x",
        "DMAR: [DMA Write bogus] Request device [00:04.0] fault addr 0x0 [fault reason 0x05] x",
        "DMAR: [DMA Write] Request device [zz:04.0] fault addr 0x0 [fault reason 0x05] x",
        "DMAR: [DMA Write] Request device [00:04.9] fault addr 0x0 [fault reason 0x05] x",
        "DMAR: [DMA Write] Request device [] fault addr 0x0 [fault reason 0x05] x",
        "DMAR: [DMA Write] Request device [00:04.0] fault addr -1 [fault reason 0x05] x",
        "DMAR: [DMA Write] Request device [00:04.0] fault addr 0x [fault reason 0x05] x",
        "DMAR: [DMA Write] Request device [00:04.0] fault addr 0x1ffffffffffffffff "
        "[fault reason 0x05] x",
        "DMAR: [DMA Write] Request device [00:04.0] fault addr 0x1000 [fault reason ] x",
        "AMD-Vi: Event logged [IO_PAGE_FAULT address=0x0 flags=0x0]",
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=02:00.0 flags=0x0]",
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=02:00.0 address=zz flags=0x0]",
        "x y AMD-Vi: Event logged [IO_PAGE_FAULT device=02:00.0 address=0x0 flags=0x0]"}) {
    INFO(message);
    CHECK(KindOf(message) == FaultLine::kBad);
  }
}

TEST_CASE("what is passed on can be printed, and is not long") {
  const auto fault = Parse(
      "DMAR: [DMA Read] Request device [04:00.0] fault addr 0x1000 "
      "[fault reason 0x06] \x1b[31mred\x07" +
      std::string(10'000, 'x'));
  REQUIRE(fault.has_value());
  CHECK(fault->reason.size() == 160);
  CHECK(fault->reason.starts_with("?[31mred?xxx"));
  const auto silent = Parse(
      "DMAR: [DMA Read] Request device [04:00.0] fault addr 0x1000 "
      "[fault reason 0x06] \n");
  REQUIRE(silent.has_value());
  CHECK(silent->reason == "fault reason 0x06");
}

TEST_CASE("random damage to a line never makes another address of it") {
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string line = round % 2 == 0 ? kIntel : kAmd;
    const size_t changes = 1 + random() % 4;
    for (size_t i = 0; i < changes; ++i) line[random() % line.size()] = static_cast<char>(random());
    const auto fault = Parse(line);
    if (fault) CHECK((fault->device.size() == 7 || fault->device.size() == 12));
  }
}

// --- The log ------------------------------------------------------------------------------------

// What a log gives, read by read.
struct FakeKmsg {
  std::deque<std::string> reads{};
  std::deque<int> errors{};  // before them

  KernelFaultLog::Reader Reader() {
    return [this](std::span<char> to) -> int64_t {
      if (!errors.empty()) {
        const int error = errors.front();
        errors.pop_front();
        return -error;
      }
      if (reads.empty()) return -EAGAIN;
      std::string& next = reads.front();
      const size_t n = std::min(next.size(), to.size());
      std::copy_n(next.begin(), n, to.begin());
      next.erase(0, n);
      if (next.empty()) reads.pop_front();
      return static_cast<int64_t>(n);
    };
  }
};

std::string Record(const std::string& message, int priority = 3) {
  return std::to_string(priority) + ",100,12345678,-;" + message + "\n SUBSYSTEM=pci\n";
}

TEST_CASE("records are read as they come, whole or in pieces") {
  FakeKmsg kmsg;
  KernelFaultLog log(kmsg.Reader());
  std::vector<KernelFault> faults;
  const auto visit = [&](const KernelFault& fault) { faults.push_back(fault); };
  CHECK(log.Poll(visit) == 0);
  kmsg.reads = {Record("e1000e: link up"), Record(kIntel), Record(kAmd)};
  CHECK(log.Poll(visit) == 2);
  REQUIRE(faults.size() == 2);
  CHECK(faults[1].device == "02:00.0");
  const std::string piece = Record(kIntel);
  kmsg.reads = {piece.substr(0, 50)};
  CHECK(log.Poll(visit) == 0);
  kmsg.reads = {piece.substr(50)};
  CHECK(log.Poll(visit) == 1);
  CHECK(log.stats().lines == 4);
  CHECK(log.stats().faults == 3);
  CHECK(log.stats().bad == 0);
}

TEST_CASE("what programs write into the log is not the kernel's") {
  FakeKmsg kmsg;
  KernelFaultLog log(kmsg.Reader());
  kmsg.reads = {Record(kIntel, 8 + 3), Record(kIntel, 24)};
  CHECK(log.Poll([](const KernelFault&) { FAIL("forged"); }) == 0);
  CHECK(log.stats().lines == 2);
}

TEST_CASE("cut, overlong and shapeless records are counted, and what follows is read") {
  FakeKmsg kmsg;
  KernelFaultLog log(kmsg.Reader());
  size_t faults = 0;
  const auto visit = [&](const KernelFault&) { ++faults; };
  kmsg.reads = {Record(kIntel.substr(0, 60)),
                "no prefix at all\n",
                ";\n",
                "3,1,1,-;DMAR: [DMA Write] " + std::string(100'000, 'a') + "\n",
                std::string("\0\0\0\n", 4),
                Record(kIntel)};
  CHECK(log.Poll(visit) == 1);
  CHECK(faults == 1);
  CHECK(log.stats().bad == 5);
  CHECK(log.stats().lines == 6);
}

TEST_CASE("an overrun of the log is counted, and reading goes on") {
  FakeKmsg kmsg;
  KernelFaultLog log(kmsg.Reader());
  kmsg.errors = {EPIPE, EINTR, EPIPE};
  kmsg.reads = {Record(kIntel)};
  CHECK(log.Poll([](const KernelFault&) {}) == 1);
  CHECK(log.stats().overruns == 2);
  kmsg.errors = {EIO};
  kmsg.reads = {Record(kIntel)};
  CHECK(log.Poll([](const KernelFault&) {}) == 0);
  CHECK(log.stats().errors == 1);
  CHECK(log.Poll([](const KernelFault&) {}) == 1);
  // A log that is never anything but lost does not hold its reader for ever.
  KernelFaultLog lost([](std::span<char>) { return -EPIPE; });
  CHECK(lost.Poll([](const KernelFault&) {}) == 0);
  CHECK(lost.stats().errors == 1);
}

TEST_CASE("one poll reads a bounded number of lines") {
  KernelFaultLog endless([](std::span<char> to) {
    const std::string record = Record(kIntel);
    std::copy(record.begin(), record.end(), to.begin());
    return static_cast<int64_t>(record.size());
  });
  CHECK(endless.Poll([](const KernelFault&) {}) == 65'536);
}

TEST_CASE("a log of a file begins at its end, and a missing one is named") {
  const char* const directory = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(directory != nullptr ? directory : "/tmp") + "/kmsg";
  std::ofstream(path) << Record(kIntel);
  const auto log = KernelFaultLog::Open(path);
  REQUIRE(log.ok());
  CHECK((*log)->Poll([](const KernelFault&) {}) == 0);
  std::ofstream(path, std::ios::app) << Record(kAmd);
  CHECK((*log)->Poll([](const KernelFault&) {}) == 1);
  CHECK(Says(KernelFaultLog::Open(path + "/none").status(), VfioProblem::kKernel, {path}));
  if (geteuid() != 0) {
    chmod(path.c_str(), 0);
    CHECK(Says(KernelFaultLog::Open(path).status(), VfioProblem::kPermission, {"CAP_SYSLOG"}));
  }
}

// --- A domain's faults --------------------------------------------------------------------------

struct Listener : FaultListener {
  void OnFault(const DomainFault& fault) override {
    devices.emplace_back(fault.device);
    last = fault;
    reason = fault.reason;
  }
  std::vector<std::string> devices{};
  DomainFault last{};
  std::string reason{};
};

TEST_CASE("a domain tells of the faults of its own devices, by their full address") {
  FakeKmsg kmsg;
  FakeVfioFunction other;
  other.address = "0000:00:05.0";
  other.group = 2;
  FakeVfioKernel kernel({.functions = {FakeVfioFunction{}, other}});
  VfioContainer::Options options;
  options.faults = std::make_unique<KernelFaultLog>(kmsg.Reader());
  auto container = *VfioContainer::Open(kernel, kernel.ContainerOptions(std::move(options)));
  auto device = *VfioDevice::Open(*container, "0000:00:04.0");
  VfioDomain& domain = **container->domain();
  auto late = *VfioDevice::Open(*container, "0000:00:05.0");
  Listener listener, deaf;
  REQUIRE(domain.AddFaultListener(&listener));
  REQUIRE(domain.AddFaultListener(&deaf));
  domain.RemoveFaultListener(&deaf);
  std::string of_late = kIntel;
  of_late.replace(of_late.find("00:04.0"), 7, "00:05.0");
  kmsg.reads = {Record(kAmd), Record(of_late), Record(kIntel)};
  CHECK(domain.PollFaults() == 2);
  CHECK(listener.devices == std::vector<std::string>{"0000:00:05.0", "0000:00:04.0"});
  CHECK(listener.last.iova == Iova(0xfffff000));
  CHECK(listener.last.access == Access::kWrite);
  CHECK(listener.reason == "PTE Write access is not set");
  CHECK_FALSE(listener.last.stale);
  CHECK(deaf.devices.empty());
  late.reset();
  kmsg.reads = {Record(of_late)};
  CHECK(domain.PollFaults() == 0);
  CHECK(domain.fault_log_stats()->faults == 4);
  domain.RemoveFaultListener(&listener);
}

TEST_CASE("no call is running once a listener was removed, whoever polls") {
  VfioContainer::Options options;
  options.faults = std::make_unique<KernelFaultLog>([left = 20'000](std::span<char> to) mutable {
    if (left-- == 0) return int64_t{0};
    const std::string record = Record(kIntel);
    std::copy(record.begin(), record.end(), to.begin());
    return static_cast<int64_t>(record.size());
  });
  testing::VfioRig rig({}, std::move(options));
  const auto device = *VfioDevice::Open(*rig.container, "0000:00:04.0");
  std::jthread poller([&] { rig.domain->PollFaults(); });
  const Pages pages(1);
  for (int round = 0; round < 100; ++round) {
    auto listener = std::make_unique<Listener>();
    REQUIRE(rig.domain->AddFaultListener(listener.get()));
    CHECK(rig.domain->Map(testing::At(16), pages.At(0), Access::kRead).ok());
    CHECK(rig.domain->Unmap(testing::At(16)).ok());
    rig.domain->RemoveFaultListener(listener.get());
  }
  poller.join();
  CHECK(rig.domain->fault_log_stats()->faults == 20'000);
}

TEST_CASE("a domain without a log hears of no faults, and says so") {
  testing::VfioRig rig;
  Listener listener;
  CHECK_FALSE(rig.domain->AddFaultListener(&listener));
  CHECK(rig.domain->PollFaults() == 0);
  CHECK_FALSE(rig.domain->fault_log_stats().has_value());
}

}  // namespace
}  // namespace dmakit::dma::host
