// SPDX-License-Identifier: Apache-2.0
//
// The probes are in the program's notes, where perf and bpftrace look for them: what
// `readelf -n` prints as stapsdt.

#include <elf.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "tests/catch.h"
#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

template <typename T>
T At(const std::string& file, uint64_t offset) {
  T value{};
  REQUIRE(offset + sizeof(T) <= file.size());
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

// The section of this name, or nothing.
std::string Section(const std::string& file, const std::string& name) {
  const auto header = At<Elf64_Ehdr>(file, 0);
  const auto section = [&](size_t i) {
    return At<Elf64_Shdr>(file, header.e_shoff + i * header.e_shentsize);
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr found = section(i);
    if (file.c_str() + names.sh_offset + found.sh_name == name) {
      return file.substr(found.sh_offset, found.sh_size);
    }
  }
  return "";
}

// Names of the probes of `provider` among these notes. Behind a note's header and owner there are
// three addresses, then provider, name and arguments, each with a zero behind it.
std::set<std::string> Probes(const std::string& notes, const std::string& provider) {
  const auto padded = [](uint64_t size) { return (size + 3) / 4 * 4; };
  std::set<std::string> probes;
  for (uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
    const auto note = At<Elf64_Nhdr>(notes, at);
    const uint64_t words = at + sizeof(note) + padded(note.n_namesz);
    const std::string text = notes.substr(words + 3 * sizeof(uint64_t));
    if (text.c_str() == provider) probes.insert(text.c_str() + provider.size() + 1);
    at = words + padded(note.n_descsz);
  }
  return probes;
}

// Passes every probe. Nothing watches them here, and none changes what a call does.
void UseEveryCall() {
  testing::Fixture fixture;
  fixture.NewSpace();
  auto device =
      fixture.space->Attach({.name = "nic", .domain = &fixture.NewDomain(), .coherent = false});
  REQUIRE(device.ok());
  testing::Buffer buffer(8192);
  auto mapping = (*device)->Map(buffer.all(), Direction::kBidirectional);
  REQUIRE(mapping.ok());
  CHECK(mapping->SyncForCpu(0, 64).ok());
  CHECK(mapping->SyncForDevice(0, 64).ok());
  CHECK((*device)->Unmap(*std::move(mapping)).ok());
  const std::span<std::byte> entries[] = {buffer.part(0, 4096), buffer.part(4096, 4096)};
  auto list = (*device)->MapSg(entries, Direction::kToDevice);
  REQUIRE(list.ok());
  CHECK((*device)->Unmap(*std::move(list)).ok());
  CHECK((*device)->AllocateCoherent({.size = Bytes(4096), .label = "ring"}).ok());
}

TEST_CASE("a program has a probe for each of the kernel's events, if the build has any") {
  UseEveryCall();
  std::ifstream in("/proc/self/exe", std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  const std::set<std::string> found = Probes(Section(file, ".note.stapsdt"), "dmakit");
#if defined(DMAKIT_USDT)
  CHECK(found == std::set<std::string>{"dma_map", "dma_unmap", "dma_map_sg", "dma_unmap_sg",
                                       "dma_alloc", "dma_free", "dma_sync_single_for_cpu",
                                       "dma_sync_single_for_device"});
#else
  CHECK(found.empty());
#endif
}

}  // namespace
}  // namespace dmakit::dma
