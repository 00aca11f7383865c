// SPDX-License-Identifier: Apache-2.0
//
// compare_captures A B [SOURCE]: whether two captures hold the same frames in the same order, byte
// for byte, whatever their times. With SOURCE (a MAC address), only the frames of A that come from
// it count. Prints how many there are; exit code 1 and the first difference if they differ.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "nic/wire/pcap_source.h"

namespace {

using dmakit::nic::PcapSource;
using Frame = std::optional<std::span<const std::byte>>;

std::unique_ptr<PcapSource> Open(const char* path) {
  auto capture = PcapSource::Open(path);
  if (capture.ok()) return *std::move(capture);
  std::fprintf(stderr, "%s: %s\n", path, std::string(capture.status().message()).c_str());
  return nullptr;
}

// The next frame from `source`, or any if that is empty.
Frame Next(PcapSource& capture, std::span<const std::byte> source) {
  for (;;) {
    const Frame frame = capture.Peek();
    if (!frame || source.empty()) return frame;
    if (std::equal(source.begin(), source.end(), frame->begin() + 6)) return frame;
    capture.Pop();
  }
}

bool ReadMac(const char* text, std::byte (&mac)[6]) {
  unsigned b[6];
  char more = 0;
  if (std::sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x%c", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5],
                  &more) != 6) {
    return false;
  }
  for (int i = 0; i < 6; ++i) mac[i] = static_cast<std::byte>(b[i]);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::byte mac[6];
  if (argc < 3 || argc > 4 || (argc == 4 && !ReadMac(argv[3], mac))) {
    std::fprintf(stderr, "usage: compare_captures A B [SOURCE-MAC]\n");
    return 2;
  }
  const auto a = Open(argv[1]);
  const auto b = Open(argv[2]);
  if (a == nullptr || b == nullptr) return 2;
  const std::span<const std::byte> source =
      argc == 4 ? std::span<const std::byte>(mac) : std::span<const std::byte>();
  unsigned long long frames = 0;
  for (;; ++frames) {
    const Frame left = Next(*a, source);
    const Frame right = b->Peek();
    if (!left && !right) break;
    if (!left || !right || left->size() != right->size() ||
        std::memcmp(left->data(), right->data(), left->size()) != 0) {
      std::fprintf(stderr, "frame %llu differs: %zu and %zu bytes\n", frames,
                   left ? left->size() : 0, right ? right->size() : 0);
      return 1;
    }
    a->Pop();
    b->Pop();
  }
  if (!a->Close().ok() || !b->Close().ok()) {
    std::fprintf(stderr, "a capture is damaged\n");
    return 1;
  }
  std::printf("%llu frames\n", frames);
  return 0;
}
